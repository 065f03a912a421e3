"""Graphs of a single custom operator, and what there is to see after a pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from qwen_export.contract import IR_VERSION, OPSET
from tests.bound_graph import Arrays, GraphSession

DTYPES = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "int64": ir.DataType.INT64,
    "bool": ir.DataType.BOOL,
}
Declared = tuple[str, Sequence[int | str]]
"""dtype and shape of a value."""


def one_node(
    op_type: str, inputs: Mapping[str, Declared], attributes: Mapping[str, int | float], outputs: Mapping[str, str]
) -> ir.Model:
    """A model whose only node is `qwen_export::op_type`; outputs by name with their dtype."""
    given = [_value(name, *declared) for name, declared in inputs.items()]
    node = ir.node(op_type, given, dict(attributes), domain="qwen_export", num_outputs=len(outputs))
    for value, (name, dtype) in zip(node.outputs, outputs.items(), strict=True):
        value.name, value.type = name, ir.TensorType(DTYPES[dtype])
    graph = ir.Graph(given, node.outputs, nodes=[node], name="one_node", opset_imports={"": OPSET, "qwen_export": 1})
    return ir.Model(graph, ir_version=IR_VERSION)


def run(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> Arrays:
    """Outputs by name, on ONNX Runtime's CPU provider. Inputs that a lowering no longer reads may be given."""
    return session(model).run(feeds)


def session(model: ir.Model) -> GraphSession:
    """A session of a lowered model."""
    name_values(model.graph)
    return GraphSession(ir.to_proto(model).SerializeToString())


def name_values(graph: ir.Graph) -> None:
    """Give every value a name of its own, as the pipeline's last pass does."""
    for number, node in enumerate(nodes(graph)):
        for index, value in enumerate(node.outputs):
            if value.name is None or not value.is_graph_output() or value.graph is not graph:
                value.name = f"v{number}_{index}"


def nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """All nodes, nested ones included."""
    return iter(ir.traversal.RecursiveGraphIterator(graph))


def operators(graph: ir.Graph) -> Counter[str]:
    """Operator -> count over the graph and everything nested in it."""
    return Counter(node.op_type for node in nodes(graph))


def top_level(graph: ir.Graph) -> list[str]:
    """Operators of the graph itself, in order."""
    return [node.op_type for node in graph]


def branch(graph: ir.Graph, name: str) -> ir.Graph:
    """The one subgraph with this name."""
    found = [inner for node in nodes(graph) for inner in subgraphs(node) if inner.name == name]
    assert len(found) == 1, f"{len(found)} subgraphs are called {name}"
    return found[0]


def subgraphs(node: ir.Node) -> list[ir.Graph]:
    """The graphs in a node's attributes."""
    return [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]


def _value(name: str, dtype: str, shape: Sequence[int | str]) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(DTYPES[dtype]), shape=ir.Shape(shape))
