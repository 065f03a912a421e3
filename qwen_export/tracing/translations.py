"""Translations: each custom operator of the wrappers becomes one opaque node at export.

torch.onnx needs a callable with an ONNX schema for every custom operator; without an entry it stops with
ConversionError. The node's schema lists inputs and attributes in the operator's own order.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import torch
from onnxscript import values

from qwen_export.wrappers import decoder_operators, vision_operators  # noqa: F401  (defines the operators)

DOMAIN = "qwen_export"
_INT, _FLOAT = onnx.defs.OpSchema.AttrType.INT, onnx.defs.OpSchema.AttrType.FLOAT
_ATTRIBUTES = {"int": _INT, "bool": _INT, "float": _FLOAT}


def translation_table() -> dict[Callable, Callable]:
    """torch operator -> translation, for `torch.onnx.export(custom_translation_table=...)`."""
    names = ("plan_step", "gated_delta_net", "cached_attention", "vision_plan", "packed_attention")
    return {getattr(torch.ops.qwen_export, name).default: _translation(name) for name in names}


def _translation(name: str) -> Callable:
    schema = getattr(torch.ops.qwen_export, name).default._schema
    tensors = [arg.name for arg in schema.arguments if str(arg.type) == "Tensor"]
    attributes = {arg.name: str(arg.type) for arg in schema.arguments if str(arg.type) != "Tensor"}
    op = _opaque(name, tensors, attributes, len(schema.returns))

    def translate(*args, **kwargs):
        bound = dict(zip([arg.name for arg in schema.arguments], args, strict=False)) | kwargs
        return op(
            *(bound[t] for t in tensors),
            **{a: int(bound[a]) if kind == "bool" else bound[a] for a, kind in attributes.items()},
        )

    return translate


def _opaque(name: str, inputs: list[str], attributes: dict[str, str], num_outputs: int) -> values.Op:
    parameter = onnx.defs.OpSchema.FormalParameter
    schema = onnx.defs.OpSchema(
        name,
        DOMAIN,
        1,
        inputs=[parameter(x, f"T_{x}") for x in inputs],
        outputs=[parameter(f"out_{i}", f"T_out_{i}") for i in range(num_outputs)],
        type_constraints=[(f"T_{x}", list(_ANY), "") for x in [*inputs, *(f"out_{i}" for i in range(num_outputs))]],
        attributes=[
            onnx.defs.OpSchema.Attribute(a, _ATTRIBUTES[kind], required=True) for a, kind in attributes.items()
        ],
    )
    return values.Op(values.Opset(DOMAIN, 1), name, schema)


_ANY = tuple(f"tensor({t})" for t in ("float", "float16", "bfloat16", "int64", "bool"))
