"""Is a graph right when a present state is written over its past? Judged by data dependency alone.

A runtime may give one buffer to a past and its present. Then every node that reads the past must come before the node
that writes the present in *every* valid order: the reader is that node itself, or the writer needs its result.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from tests.passes.one_node import subgraphs


def hazards(graph: ir.Graph, past: ir.Value, present: ir.Value) -> list[str]:
    """Readers of `past` that could run after `present` is written, as sentences."""
    writer = present.producer()
    if writer is None or writer.graph is not graph:
        # handed straight on, or written by the graph around this one: nothing is overwritten here
        return []
    needed = ancestors(writer)
    found = [
        f"{reader.name} reads {past.name} but {writer.name}, which writes {present.name}, does not wait for it"
        for reader in graph
        if reader is not writer and reader not in needed and reads(reader, past)
    ]
    for inner in subgraphs(writer):
        found += _inside(writer, inner, past, present)
    return found


def _inside(writer: ir.Node, inner: ir.Graph, past: ir.Value, present: ir.Value) -> Iterator[str]:
    """The same question in a body of the writer, with the body's own names of past and present."""
    index = list(writer.outputs).index(present)
    if writer.op_type == "Scan":
        carried = len(inner.inputs) - writer.attributes["num_scan_inputs"].as_int()
        if index < carried and writer.inputs[index] is past:
            past = inner.inputs[index]
    yield from hazards(inner, past, inner.outputs[index])


def ancestors(node: ir.Node) -> set[ir.Node]:
    """Nodes of the same graph whose results a node needs, directly or not."""
    found: set[ir.Node] = set()
    left = [node]
    while left:
        for value in used_values(left.pop()):
            producer = value.producer()
            if producer is not None and producer.graph is node.graph and producer not in found:
                found.add(producer)
                left.append(producer)
    return found


def reads(node: ir.Node, value: ir.Value) -> bool:
    """Whether a node or anything nested in it takes the value."""
    return any(used is value for used in used_values(node))


def used_values(node: ir.Node) -> Iterator[ir.Value]:
    """Inputs of a node, those that its subgraphs take from outside included."""
    yield from (value for value in node.inputs if value is not None)
    for inner in subgraphs(node):
        yield from (value for value in inner.outputs if value is not None)
        for nested in inner:
            yield from used_values(nested)
