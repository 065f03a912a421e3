"""The writer of standard operators: nodes in order, constants shared by content, lowered nodes replaced in place."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qwen_export.contract import OPSET
from qwen_export.passes.standard_ops import IDEA, StandardOps, constant_name, lower_nodes
from tests.passes.one_node import nodes, one_node, operators, run, top_level


def custom(op_type: str = "double") -> ir.Model:
    return one_node(op_type, {"x": ("float32", ("n",))}, {}, {"y": "float32"})


def test_arrays_become_constants_and_equal_ones_are_one_value():
    ops = StandardOps("idea")
    x = ir.Value(name="x")
    first, second = ops.Add(x, np.float32(2)), ops.Mul(x, np.float32(2))
    third = ops.Mul(x, np.int64(2))
    assert first.producer().inputs[1] is second.producer().inputs[1]
    assert third.producer().inputs[1] is not second.producer().inputs[1]
    assert [node.op_type for node in ops.nodes] == ["Add", "Mul", "Mul"]
    assert all(node.metadata_props[IDEA] == "idea" for node in ops.nodes)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (np.int64(1), np.int64(1), True),
        (np.int64(1), np.array([1]), False),
        (np.array([1, 2]), np.array([2, 1]), False),
        (np.array([1.0, 2.0], np.float32), np.array([1.0, 2.0], np.float64), False),
        (np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32), False),
        (np.zeros(0, np.int64), np.zeros(0, np.int64), True),
        (np.float32(0.0), np.float32(-0.0), False),
        (np.arange(9), np.arange(9), True),
    ],
)
def test_a_constants_name_says_what_it_holds(first, second, same):
    assert (constant_name(np.asarray(first)) == constant_name(np.asarray(second))) is same


def test_no_input_stays_no_input():
    ops = StandardOps("idea")
    x = ir.Value(name="x")
    out = ops.Attention(x, x, x, None, x, x, outputs=3, is_causal=1)
    assert len(out) == 3 and out[0].producer().inputs[3] is None


def test_cast_only_where_types_differ():
    ops = StandardOps("idea")
    x = ir.Value(name="x")
    assert ops.cast(x, ir.DataType.FLOAT, ir.DataType.FLOAT) is x
    assert ops.cast(x, ir.DataType.FLOAT, ir.DataType.FLOAT16).producer().op_type == "Cast"


def test_only_operator_names_are_operators():
    with pytest.raises(AttributeError):
        StandardOps("idea").no_operator  # noqa: B018


def test_lowering_replaces_the_node_and_says_how_often():
    model = custom()
    assert lower_nodes(model, "double", lambda ops, node: [ops.Mul(node.inputs[0], np.float32(2))]) == 1
    assert top_level(model.graph) == ["Mul"]
    assert model.graph.opset_imports[""] == OPSET
    assert np.array_equal(run(model, {"x": np.array([1, 3], np.float32)})["y"], [2, 6])


def test_nodes_of_another_name_are_left_alone():
    model = custom("halve")
    assert lower_nodes(model, "double", lambda ops, node: [ops.Neg(node.inputs[0])]) == 0
    assert [node.domain for node in model.graph] == ["qwen_export"]


def test_constants_of_branches_lie_in_the_main_graph():
    model = custom()

    def lowering(ops: StandardOps, node: ir.Node):
        def body(inner: StandardOps):
            return [(inner.Add(node.inputs[0], np.float32(3)), ir.DataType.FLOAT)]

        return [ops.If(np.array(True), then_branch=ops.graph("a", body), else_branch=ops.graph("b", body))]

    lower_nodes(model, "double", lowering)
    assert len(model.graph.initializers) == 2
    adds = [node for node in nodes(model.graph) if node.op_type == "Add"]
    assert len(adds) == 2 and adds[0].inputs[1] is adds[1].inputs[1]
    assert operators(model.graph) == {"If": 1, "Add": 2}


def test_a_constant_the_graph_has_already_is_used_again():
    model = custom()
    lower_nodes(model, "double", lambda ops, node: [ops.Relu(ops.Mul(node.inputs[0], np.float32(2)))])
    second = ir.node("triple", [model.graph.node(-1).outputs[0]], domain="qwen_export")
    model.graph.append(second)
    lower_nodes(model, "triple", lambda ops, node: [ops.Mul(node.inputs[0], np.float32(2))])
    assert len(model.graph.initializers) == 1
