"""Names, order, dtypes and axis names of every graph are those of the contract, and the manifest says the same."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from qwen_export.contract import GraphContract, TensorSpec
from qwen_export.package.audit.report import Finding

_TYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16",
    onnx.TensorProto.INT64: "int64",
    onnx.TensorProto.BOOL: "bool",
    onnx.TensorProto.INT32: "int32",
}


def check_interface(file: str, model: onnx.ModelProto, contract: GraphContract, in_manifest: dict) -> Iterator[Finding]:
    """Findings on one graph's inputs and outputs."""
    weights = {tensor.name for tensor in model.graph.initializer}
    found = {
        "input": [_spec(value) for value in model.graph.input if value.name not in weights],
        "output": [_spec(value) for value in model.graph.output],
    }
    expected = {"input": contract.inputs, "output": contract.outputs}
    for side, specs in found.items():
        yield from _compare(file, side, specs, list(expected[side]))
    if in_manifest != contract.to_dict():
        yield Finding("contract", "the manifest's copy of the contract is another one.", file)


def _compare(file: str, side: str, found: list[TensorSpec], expected: list[TensorSpec]) -> Iterator[Finding]:
    names, wanted = [spec.name for spec in found], [spec.name for spec in expected]
    for name in wanted:
        if name not in names:
            yield Finding("contract", f"{side} {name} is missing.", file, name)
    for name in names:
        if name not in wanted:
            yield Finding("contract", f"{side} {name} is not in the contract.", file, name)
    if names != wanted and sorted(names) == sorted(wanted):
        first = next(i for i, (a, b) in enumerate(zip(names, wanted, strict=True)) if a != b)
        yield Finding("contract", f"{side} {first} is {names[first]}; the contract's order has {wanted[first]}.", file)
    by_name = {spec.name: spec for spec in expected}
    for spec in found:
        asked = by_name.get(spec.name)
        if asked is None:
            continue
        if spec.dtype != asked.dtype:
            yield Finding("contract", f"{side} is {spec.dtype} instead of {asked.dtype}.", file, spec.name)
        if spec.shape != asked.shape:
            shapes = f"{list(spec.shape)} instead of {list(asked.shape)}"
            yield Finding("contract", f"{side} has the shape {shapes}.", file, spec.name)


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    shape = tuple(axis.dim_value if axis.HasField("dim_value") else axis.dim_param or "?" for axis in tensor.shape.dim)
    return TensorSpec(value.name, _TYPES.get(tensor.elem_type, f"type {tensor.elem_type}"), shape)
