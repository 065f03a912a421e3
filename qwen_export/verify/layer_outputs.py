"""Where a layer ends inside a graph: the values that carry the residual stream from one layer to the next."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import onnx

MODULE = "qwen_export.module"
"""Node metadata key: the module of the model a node came from."""
_LAYER = re.compile(r"\.(layers|blocks)\.(\d+)(?=\.|$)")


def module_of(node: onnx.NodeProto) -> str:
    """The module a node came from, or nothing."""
    return next((entry.value for entry in node.metadata_props if entry.key == MODULE), "")


def layer_of(node: onnx.NodeProto) -> int | None:
    """Index of the decoder layer or vision block a node belongs to; None for prelude, head and merger."""
    found = _LAYER.search(module_of(node))
    return int(found.group(2)) if found else None


def layer_outputs(graph: onnx.GraphProto) -> dict[int, str]:
    """Layer or block -> the value that leaves it for the next one (or for the head)."""
    owner: dict[str, int | None] = {}
    for node in graph.node:
        owner.update({name: layer_of(node) for name in node.output if name})
    found: dict[int, str] = {}
    for node in graph.node:
        here = layer_of(node)
        for name in reads(node):
            layer = owner.get(name)
            if layer is not None and layer != here:
                found[layer] = name
    return dict(sorted(found.items()))


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Every value a node reads, those of its subgraphs included."""
    yield from (name for name in node.input if name)
    for graph in subgraphs(node):
        made = {name for inner in graph.node for name in inner.output}
        made |= {value.name for value in (*graph.input, *graph.initializer)}
        wanted: Iterable[str] = [name for inner in graph.node for name in reads(inner)]
        wanted = [*wanted, *(value.name for value in graph.output)]
        yield from (name for name in wanted if name not in made)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def add_outputs(model: onnx.ModelProto, names: Iterable[str]) -> None:
    """Make inner values outputs of the graph; their types follow from shape inference of whoever runs it."""
    known = {value.name for value in model.graph.output}
    types = {value.name: value for value in model.graph.value_info}
    for name in names:
        if name not in known:
            model.graph.output.append(types.get(name) or onnx.ValueInfoProto(name=name))
