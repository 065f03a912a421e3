"""Lower `plan_step`: the flags, masks and indices that all layers of one call share.

Before     single_step, token_mask, chunk_index, chunk_mask, unpadded, bias, kv_length = plan_step(embeds, mask)
After      single_step  Equal(Shape(S), 1): shape arithmetic, kept on the host by ONNX Runtime, so `If` never waits
           unpadded     ReduceMin(mask) == 1
           kv_length    the mask's length, or in the single-step graph the place of its last 1
           the rest     inside If(single_step) and If(unpadded): a decode step computes none of it
Why        48 layers need the chunk masks and 16 the bias; an [S, T] bias must not exist when nothing is padded.
Numerics   SAME: integers, and masks that are exactly 0 and 1.
Declines   nothing; there is one such node per decoder, written by the prelude.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from qwen_export.passes.standard_ops import NUMPY, StandardOps, lower_nodes

MASKED = {ir.DataType.FLOAT: -3.4028234663852886e38, ir.DataType.FLOAT16: -65504.0, ir.DataType.BFLOAT16: -3.3895314e38}
"""Bias of an invisible key: the most negative finite number of the dtype."""


def lower_plan_step(model: ir.Model, single_step: bool = False) -> int:
    """Run the pass. `single_step`: for the graph without If, whose mask has the cache's length. Returns the count."""
    return lower_nodes(model, "plan_step", _lower_single_step if single_step else _lower)


def _lower_single_step(ops: StandardOps, node: ir.Node) -> Sequence[ir.Value]:
    embeds, mask = node.inputs
    assert embeds is not None and mask is not None and embeds.dtype is not None
    place = np.arange(1, node.attributes["max_length"].as_int() + 1, dtype=np.int64)
    kv_length = ops.ReduceMax(ops.Mul(mask, place), ops.ints(1), keepdims=0)
    yes = ops.Identity(np.array(True))
    # never read: the single-step branches of the layers do not look at masks
    unread = ops.Identity(np.ones((1, 1, 1, 1), NUMPY[embeds.dtype]))
    chunk_mask = ops.Identity(np.ones((1, 1, 1), np.float32))
    return yes, unread, ops.Identity(ops.ints(0)), chunk_mask, yes, unread, kv_length


def _lower(ops: StandardOps, node: ir.Node) -> Sequence[ir.Value]:
    embeds, mask = node.inputs
    assert embeds is not None and mask is not None and embeds.dtype is not None
    chunk, dtype = node.attributes["chunk"].as_int(), embeds.dtype
    max_length = node.attributes["max_length"].as_int()
    length = ops.Shape(embeds, start=1, end=2)
    single_step = ops.Equal(ops.Squeeze(length), np.int64(1))
    unpadded = ops.Equal(ops.ReduceMin(mask, keepdims=0), np.int64(1))

    def one_token(inner: StandardOps) -> Sequence[tuple[ir.Value, ir.DataType]]:
        # never read: the decode branches of the layers do not look at masks
        one = inner.Identity(np.ones((1, 1, 1), NUMPY[dtype]))
        index = inner.Identity(inner.ints(0))
        return [
            (one, dtype),
            (index, ir.DataType.INT64),
            (inner.Identity(np.ones((1, 1, 1), np.float32)), ir.DataType.FLOAT),
        ]

    def many_tokens(inner: StandardOps) -> Sequence[tuple[ir.Value, ir.DataType]]:
        recent = inner.Slice(mask, inner.Neg(length), inner.ints(np.iinfo(np.int64).max), inner.ints(1))
        recent = inner.Unsqueeze(recent, inner.ints(2))
        slots = inner.Squeeze(inner.Mul(_ceil_div(inner, length, chunk), np.int64(chunk)))
        slot = inner.Range(np.int64(0), slots, np.int64(1))
        index = inner.Min(slot, inner.Sub(length, np.int64(1)))
        real = inner.Cast(inner.Less(slot, length), to=ir.DataType.INT64)
        chunk_mask = inner.Mul(inner.Gather(recent, index, axis=1), inner.Unsqueeze(real, inner.ints(1)))
        return [
            (inner.Cast(recent, to=dtype), dtype),
            (index, ir.DataType.INT64),
            (inner.Cast(chunk_mask, to=ir.DataType.FLOAT), ir.DataType.FLOAT),
        ]

    token_mask, chunk_index, chunk_mask = ops.If(
        single_step,
        outputs=3,
        then_branch=ops.graph("one_token", one_token),
        else_branch=ops.graph("many_tokens", many_tokens),
    )

    def no_bias(inner: StandardOps) -> Sequence[tuple[ir.Value, ir.DataType]]:
        return [(inner.Identity(np.zeros((1, 1, 1, 1), NUMPY[dtype])), dtype)]

    def bias(inner: StandardOps) -> Sequence[tuple[ir.Value, ir.DataType]]:
        total = inner.Squeeze(inner.Shape(mask, start=1, end=2))
        key = inner.Range(np.int64(0), total, np.int64(1))
        query = inner.Slice(key, inner.Neg(length), inner.ints(np.iinfo(np.int64).max))
        given = mask
        if max_length:
            key = inner.Identity(np.arange(max_length, dtype=np.int64))
            # slots after the last token repeat its mask; causality hides them
            given = inner.Gather(mask, inner.Min(key, inner.Sub(total, np.int64(1))), axis=1)
        causal = inner.LessOrEqual(key, inner.Unsqueeze(query, inner.ints(1)))
        present = inner.Unsqueeze(inner.Equal(given, np.int64(1)), inner.ints(1, 2))
        zero, masked = (np.array(v, dtype=NUMPY[dtype]) for v in (0.0, MASKED[dtype]))
        return [(inner.Where(inner.And(causal, present), zero, masked), dtype)]

    attention_bias = ops.If(unpadded, then_branch=ops.graph("no_bias", no_bias), else_branch=ops.graph("bias", bias))
    kv_length = ops.Expand(ops.Shape(mask, start=1, end=2), ops.Shape(mask, start=0, end=1))
    return single_step, token_mask, chunk_index, chunk_mask, unpadded, attention_bias, kv_length


def _ceil_div(ops: StandardOps, value: ir.Value, divisor: int) -> ir.Value:
    return ops.Div(ops.Add(value, np.int64(divisor - 1)), np.int64(divisor))
