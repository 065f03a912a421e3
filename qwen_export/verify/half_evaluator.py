"""onnx's reference evaluator with the roundings of a GPU: float32 inside an operator, one rounding at its end.

The plain evaluator computes half precision in numpy's half, with a rounding after every step inside an operator
(inside a sigmoid, after every term of a product); no GPU does that. Here every operator with a half input is computed
in float32 and its outputs are rounded once to the type that the operator's schema gives them. `Attention` alone rounds
once more inside, as Flash attention does: the weights are rounded before they meet the values.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_conv

HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
AS_GIVEN = frozenset(
    (
        *("Cast", "Concat", "Constant", "ConstantOfShape", "Expand", "Gather", "Identity", "If", "Loop", "Pad"),
        *("Reshape", "Scan", "Shape", "Slice", "Split", "Squeeze", "TensorScatter", "Transpose", "Unsqueeze", "Where"),
    )
)
"""Operators that move numbers without computing, and those that hold subgraphs."""


class HalfEvaluator(ReferenceEvaluator):
    """Evaluates a graph of mixed precision on the CPU. Slow; for tiny packages."""

    def _load_impl(self, node: onnx.NodeProto, input_types: Any = None) -> Any:
        if node.domain == "" and node.op_type in OWN:
            return OWN[node.op_type]
        implementation = super()._load_impl(node, input_types)
        if node.domain != "" or node.op_type in AS_GIVEN or not isinstance(implementation, type):
            return implementation
        return _rounded_once(implementation, node.op_type, self.opsets[""])


@cache
def _rounded_once(implementation: type[OpRun], op_type: str, version: int) -> type[OpRun]:
    """The same operator, computed in float32 and rounded once."""
    schema = onnx.defs.get_schema(op_type, version, "")
    taken = [x.type_str for x in schema.inputs]
    given = [x.type_str for x in schema.outputs]

    class Rounded(implementation):  # type: ignore[misc,valid-type]
        def run(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
            types = {}
            for index, value in enumerate(args):
                if isinstance(value, np.ndarray):
                    types[taken[min(index, len(taken) - 1)]] = value.dtype
            if not any(dtype in HALVES for dtype in types.values()):
                return super().run(*args, **kwargs)
            with np.errstate(over="ignore", invalid="ignore"):
                wide = [_widened(value) for value in args]
                out = super().run(*wide, **kwargs)
                return tuple(_narrowed(x, types.get(given[min(i, len(given) - 1)])) for i, x in enumerate(out))

    Rounded.__name__ = implementation.__name__
    return Rounded


def _widened(value: Any) -> Any:
    return value.astype(np.float32) if isinstance(value, np.ndarray) and value.dtype in HALVES else value


def _narrowed(value: Any, dtype: np.dtype | None) -> Any:
    return value.astype(dtype) if dtype in HALVES and value.dtype != dtype else value


class Attention(OpRun):
    """As the fused kernels compute it: scores and softmax in float32, weights rounded, products in float32."""

    def _run(
        self, query, key, value, mask=None, past_key=None, past_value=None, nonpad=None,
        scale=None, is_causal=0, q_num_heads=None, kv_num_heads=None, **_,
    ):  # fmt: skip
        dtype, flat = query.dtype, query.ndim == 3
        if flat:
            query, key, value = (
                x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)
                for x, heads in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads))
            )
        past = 0
        if past_key is not None:
            past = past_key.shape[2]
            key, value = np.concatenate([past_key, key], axis=2), np.concatenate([past_value, value], axis=2)
        batch, heads, new, width = query.shape
        kv_heads, total = key.shape[1], key.shape[2]
        wide = query.astype(np.float32).reshape(batch, kv_heads, heads // kv_heads * new, width)
        scores = wide @ key.astype(np.float32).swapaxes(2, 3) * np.float32(scale or width**-0.5)
        scores = scores.reshape(batch, heads, new, total)
        scores = scores + _attention_bias(mask, bool(is_causal), nonpad, past, new, total)
        highest = scores.max(-1, keepdims=True, initial=-np.inf)
        weights = np.exp(scores - np.where(np.isneginf(highest), 0, highest))
        total_weight = weights.sum(-1, keepdims=True)
        weights = weights.astype(dtype).astype(np.float32).reshape(batch, kv_heads, -1, total)
        out = (weights @ value.astype(np.float32)).reshape(batch, heads, new, -1)
        out = (out / np.where(total_weight == 0, 1, total_weight)).astype(dtype)
        if flat:
            out = out.transpose(0, 2, 1, 3).reshape(batch, new, -1)
        return (out, key, value)[: max(1, len(self.onnx_node.output))]


def _attention_bias(mask, is_causal: bool, nonpad, past: int, new: int, total: int) -> np.ndarray:
    """What is added to the scores: [.., S, T] float32."""
    bias = np.zeros((1, 1, new, total), dtype=np.float32)
    offset = np.array([past]) if nonpad is None else nonpad.reshape(-1) - new
    keys = np.arange(total)
    if is_causal:
        last = offset[:, None] + np.arange(new)
        bias = np.where(keys <= last[:, None, :, None], bias, -np.inf)
    if nonpad is not None:
        bias = np.where(keys < nonpad.reshape(-1, 1, 1, 1), bias, -np.inf)
    if mask is None:
        return bias.astype(np.float32)
    if mask.dtype == np.bool_:
        return np.where(mask, bias, -np.inf).astype(np.float32)
    return bias.astype(np.float32) + mask.astype(np.float32)


class Gelu(OpRun):
    """One rounding; the evaluator would expand it into a function of many."""

    def _run(self, x, approximate="none"):
        wide = x.astype(np.float32)
        if approximate == "tanh":
            inner = np.tanh(np.float32(math.sqrt(2 / math.pi)) * (wide + np.float32(0.044715) * wide**3))
        else:
            inner = _ERF(wide * np.float32(math.sqrt(0.5)))
        return ((wide * 0.5 * (1 + inner)).astype(x.dtype),)


class Conv(op_conv.Conv):
    """Depthwise convolution along one axis as a few products; everything else as the evaluator has it."""

    def _run(self, x, w, b=None, auto_pad=None, dilations=None, group=None, kernel_shape=None, pads=None, strides=None):
        plain = w.ndim == 3 and group == x.shape[1] == w.shape[0] and b is None and not any(pads or ())
        if not plain or (strides or [1]) != [1] or (dilations or [1]) != [1]:
            wide = [_widened(value) for value in (x, w, b)]
            (out,) = super()._run(*wide, auto_pad, dilations, group, kernel_shape, pads, strides)  # type: ignore[call-arg]
            return (out.astype(x.dtype),)
        wide, taps = x.astype(np.float32), w.astype(np.float32)
        length = x.shape[2] - w.shape[2] + 1
        terms = [wide[:, :, k : k + length] * taps[:, 0, k, None] for k in range(w.shape[2])]
        return (sum(terms[1:], terms[0]).astype(x.dtype),)


_ERF = np.vectorize(math.erf, otypes=[np.float32])
OWN: dict[str, type[OpRun]] = {"Attention": Attention, "Conv": Conv, "Gelu": Gelu}
