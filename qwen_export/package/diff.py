"""Compare two packages: which files, weights, nodes and settings differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from qwen_export.errors import PackageError
from qwen_export.package.audit import load_graph
from qwen_export.package.audit.operators import inventory
from qwen_export.package.manifest import ComponentRecord
from qwen_export.package.open import Package, open_package
from qwen_export.package.write import file_record
from qwen_export.weights import Progress, plan_layout

MAX_LISTED = 50
"""Differing nodes or weights listed one by one per graph; the rest is counted."""
_PIECE = 1 << 24


@dataclass(frozen=True)
class Difference:
    """One difference. `kind` is `manifest`, `file`, `graph`, `node` or `weight`."""

    kind: str
    place: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} {self.place}: {self.detail}"


@dataclass(frozen=True)
class DiffReport:
    """All differences between two packages, the manifest's first."""

    first: str
    second: str
    differences: tuple[Difference, ...]

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {"same": self.same, **asdict(self)}


def diff(
    package_a: str | Path, package_b: str | Path, *, deep: bool = False, progress: Progress | None = None
) -> DiffReport:
    """Compare two packages.

    Args:
        deep: hash the files themselves; otherwise the manifests' hashes are believed.
    """
    a, b = open_package(package_a), open_package(package_b)
    found = [*_manifests(a, b), *_files(a, b, deep, progress)]
    return DiffReport(str(package_a), str(package_b), tuple(found))


def _manifests(a: Package, b: Package) -> Iterator[Difference]:
    one, other = a.manifest, b.manifest
    pairs: list[tuple[str, Any, Any]] = [("weights", one.weights, other.weights)]
    for name, left, right in (
        ("recipe", one.recipe.to_dict(), other.recipe.to_dict()),
        ("version of", dict(one.versions), dict(other.versions)),
    ):
        pairs += [(f"{name} {key}", left.get(key), right.get(key)) for key in sorted({*left, *right})]
    pairs.append(("checkpoint config", one.checkpoint.config_sha256, other.checkpoint.config_sha256))
    pairs.append(("checkpoint revision", one.checkpoint.revision, other.checkpoint.revision))
    for place, left, right in pairs:
        if left != right:
            yield Difference("manifest", place, f"{left!r} against {right!r}")
    left_tensors, right_tensors = one.checkpoint.tensors, other.checkpoint.tensors
    if left_tensors and right_tensors:
        for key in sorted({*left_tensors, *right_tensors}):
            if left_tensors.get(key) != right_tensors.get(key):
                yield Difference("manifest", f"checkpoint tensor {key}", "other bytes, or in one of them only")


def _files(a: Package, b: Package, deep: bool, progress: Progress | None) -> Iterator[Difference]:
    one, other = a.manifest.files, b.manifest.files
    names = sorted({*one, *other})
    for count, path in enumerate(names):
        if progress:
            progress.count_bytes(count, len(names), path)
        if path not in one or path not in other:
            yield Difference("file", path, f"only in {a.folder if path in one else b.folder}")
            continue
        left, right = one[path], other[path]
        if deep:
            left, right = file_record(a.folder / path), file_record(b.folder / path)
        if left == right:
            continue
        sizes = f"{left.size:,} against {right.size:,} bytes" if left.size != right.size else "same size"
        yield Difference("file", path, f"contents differ ({sizes})")
        if path.endswith(".onnx"):
            yield from _limited(_graphs(a, b, path), path)
        for component, record in a.manifest.components.items():
            twin = b.manifest.components.get(component)
            if twin and record.data == path == twin.data:
                yield from _limited(_weights(a.folder / path, b.folder / path, record, twin), path)


def _limited(found: Iterator[Difference], place: str) -> Iterator[Difference]:
    count = 0
    for difference in found:
        count += 1
        if count <= MAX_LISTED:
            yield difference
    if count > MAX_LISTED:
        yield Difference("graph", place, f"{count - MAX_LISTED} more differences of this file are not listed")


def _graphs(a: Package, b: Package, path: str) -> Iterator[Difference]:
    try:
        one, other = load_graph(a.folder / path), load_graph(b.folder / path)
    except ValueError as error:
        raise PackageError(f"{path} cannot be read as an ONNX graph: {error}.") from None
    left, right = inventory(one), inventory(other)
    for operator in sorted({*left, *right}):
        if left.get(operator, 0) != right.get(operator, 0):
            counts = f"{left.get(operator, 0)} against {right.get(operator, 0)} nodes"
            yield Difference("graph", path, f"{operator}: {counts}")
    for side in ("input", "output"):
        before, after = (
            [value.SerializeToString(deterministic=True) for value in getattr(model.graph, side)]
            for model in (one, other)
        )
        if before != after:
            yield Difference("graph", path, f"{side}s differ")
    nodes = [_nodes_by_name(model.graph) for model in (one, other)]
    for name in dict.fromkeys((*nodes[0], *nodes[1])):
        before_node, after_node = nodes[0].get(name), nodes[1].get(name)
        if before_node is None or after_node is None:
            node = before_node or after_node
            assert node is not None
            where = a.folder if before_node is not None else b.folder
            yield Difference("node", f"{path}, {name}", f"{node.op_type} only in {where}")
        elif before_node != after_node:
            yield Difference("node", f"{path}, {name}", f"{before_node.op_type} differs from {after_node.op_type}")


def _nodes_by_name(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    return {node.name or f"node {position}": node for position, node in enumerate(graph.node)}


def _weights(file_a: Path, file_b: Path, one: ComponentRecord, other: ComponentRecord) -> Iterator[Difference]:
    left, right = plan_layout(one.bindings).slots, plan_layout(other.bindings).slots
    with open(file_a, "rb") as a, open(file_b, "rb") as b:
        for name in dict.fromkeys((*left, *right)):
            if name not in left or name not in right:
                yield Difference("weight", name, "in one of them only")
                continue
            slot, twin = left[name], right[name]
            if slot.num_bytes != twin.num_bytes:
                yield Difference("weight", name, f"{slot.num_bytes:,} against {twin.num_bytes:,} bytes")
                continue
            a.seek(slot.offset)
            b.seek(twin.offset)
            differ = 0
            for start in range(0, slot.num_bytes, _PIECE):
                size = min(_PIECE, slot.num_bytes - start)
                pieces = [np.frombuffer(file.read(size), np.uint8) for file in (a, b)]
                differ += int(np.count_nonzero(pieces[0] != pieces[1]))
            if differ:
                yield Difference("weight", name, f"{differ:,} of {slot.num_bytes:,} bytes differ")
