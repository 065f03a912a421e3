"""Every weight is bound: its bytes lie where the layout puts them, inside the file, without overlap or orphan byte.

Judged over all graphs of a component, since a second graph may read the same data file. Only names, offsets and sizes
are read, never the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path, PurePosixPath

import onnx

from qwen_export.bindings import Binding
from qwen_export.package.audit.operators import walk
from qwen_export.package.audit.report import Finding
from qwen_export.package.manifest import ComponentRecord
from qwen_export.weights.layout import Slot, aligned, plan_layout

_TYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16",
}


def check_external_data(
    folder: Path, record: ComponentRecord, models: dict[str, onnx.ModelProto], has_weights: bool
) -> Iterator[Finding]:
    """Findings on one component's weights.

    Args:
        models: the component's graphs, by file.
    """
    used: dict[str, Slot] = {}
    for file, model in models.items():
        for tensor in _tensors_in_nodes(model):
            yield Finding("location", "a constant inside a node lies outside the graph file.", file, tensor.name)
        for sparse in model.graph.sparse_initializer:
            yield Finding("unbound", "is a sparse initializer.", file, sparse.values.name)
        for tensor in model.graph.initializer:
            yield from _initializer(file, tensor, record, used)
    if len(models) == len(record.graphs):
        for name in record.bindings.keys() - used.keys():
            yield Finding("unbound", "the manifest binds this weight, but no graph has it.", record.data, name)
    yield from _ranges(record, used)
    if has_weights:
        yield from _size(folder, record)


def _tensors_in_nodes(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for graph in walk(model.graph):
        if graph is not model.graph:
            yield from (t for t in graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL)
        for node in graph.node:
            for attribute in node.attribute:
                tensors = [attribute.t] if attribute.HasField("t") else list(attribute.tensors)
                yield from (t for t in tensors if t.data_location == onnx.TensorProto.EXTERNAL or t.external_data)


def _initializer(
    file: str, tensor: onnx.TensorProto, record: ComponentRecord, used: dict[str, Slot]
) -> Iterator[Finding]:
    binding = record.bindings.get(tensor.name)
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        if binding is not None:
            yield Finding("unbound", "is a bound weight but keeps a value in the graph file.", file, tensor.name)
        elif not _holds_its_value(tensor):
            yield Finding("unbound", "has no value.", file, tensor.name)
        return
    if binding is None:
        yield Finding("unbound", "lies outside the graph file, but the manifest does not bind it.", file, tensor.name)
        return
    yield from _type(file, tensor, binding)
    facts = {entry.key: entry.value for entry in tensor.external_data}
    location = facts.get("location", "")
    if str(PurePosixPath(file).parent / location) != record.data or "/" in location or "\\" in location:
        yield Finding("location", f"points to {location!r} instead of {record.data}.", file, tensor.name)
    try:
        slot = Slot(int(facts["offset"]), int(facts["length"]))
    except (KeyError, ValueError):
        yield Finding("data-range", "gives no usable offset and length.", file, tensor.name)
        return
    if tensor.name in used and used[tensor.name] != slot:
        yield Finding("data-range", "lies elsewhere than in the component's other graph.", file, tensor.name)
    used.setdefault(tensor.name, slot)


def _type(file: str, tensor: onnx.TensorProto, binding: Binding) -> Iterator[Finding]:
    dtype = _TYPES.get(tensor.data_type, str(tensor.data_type))
    if (dtype, tuple(tensor.dims)) != (binding.dtype, binding.shape):
        yield Finding(
            "binding",
            f"is {dtype} {list(tensor.dims)}, but its binding says {binding.dtype} {list(binding.shape)}.",
            file,
            tensor.name,
        )


def _holds_its_value(tensor: onnx.TensorProto) -> bool:
    count = prod(tensor.dims)
    if tensor.HasField("raw_data"):
        try:
            bits = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * 8
        except (KeyError, ValueError, TypeError):
            return len(tensor.raw_data) > 0
        return len(tensor.raw_data) == count * bits // 8 or (bits == 8 and len(tensor.raw_data) > 0)
    typed = (
        tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data, tensor.uint64_data,
        tensor.string_data,
    )  # fmt: skip
    return count == 0 or any(len(values) == count for values in typed)


def _ranges(record: ComponentRecord, used: dict[str, Slot]) -> Iterator[Finding]:
    """The used ranges tile the planned file: alignment gaps and nothing else between them, and no rest at the end."""
    planned = plan_layout(record.bindings)
    for name, slot in used.items():
        if slot != planned.slots[name]:
            wanted = planned.slots[name]
            yield Finding(
                "data-range",
                f"takes bytes {slot.offset} to {slot.end}; its bindings put it at {wanted.offset} to {wanted.end}.",
                record.data,
                name,
            )
        if slot.offset < 0 or slot.end > record.data_bytes:
            yield Finding("data-range", f"ends outside the file of {record.data_bytes} bytes.", record.data, name)
    position = 0
    for name, slot in sorted(used.items(), key=lambda item: item[1].offset):
        if slot.offset < position:
            yield Finding("overlap", f"begins at {slot.offset}, inside the weight before it.", record.data, name)
        elif slot.offset > aligned(position, slot.num_bytes):
            orphans = slot.offset - position
            yield Finding("orphan-bytes", f"{orphans} bytes before this weight belong to nothing.", record.data, name)
        position = max(position, slot.end)
    if position != record.data_bytes:
        yield Finding("orphan-bytes", f"weights end at {position} of {record.data_bytes} planned bytes.", record.data)


def _size(folder: Path, record: ComponentRecord) -> Iterator[Finding]:
    file = folder / record.data
    if record.bindings and file.is_file() and file.stat().st_size != record.data_bytes:
        yield Finding(
            "data-size", f"has {file.stat().st_size} bytes, but the weights take {record.data_bytes}.", record.data
        )
