"""Names say where a node belongs, equal constants are one, and nothing of the machine that built the graph is left."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest

from qwen_export.passes.names import rename
from qwen_export.passes.standard_ops import IDEA
from tests.bound_graph import GraphSession
from tests.passes.one_node import nodes, subgraphs

TEXT = """<ir_version: 10, opset_import: ["": 24]>
g (float[2] x, bool c) => (float[2] y) <float[2] one = {1, 1}, float[2] uno = {1, 1}, float[2] two = {2, 2}> {
    a = Add(x, one)
    b = Add(x, uno)
    s = Mul(a, b)
    y = If(c) <
        then_branch = left () => (float[2] p) { h = Add(s, two)  p = Mul(h, uno) },
        else_branch = right () => (float[2] q) { h2 = Sub(s, two)  q = Mul(h2, one) }
    >
}"""


@pytest.fixture
def model() -> ir.Model:
    found = ir.from_onnx_text(TEXT)
    found.metadata_props["pkg.torch.export.ExportedProgram"] = "secret"
    found.graph.metadata_props["pkg.torch.range"] = "secret"
    found.graph.doc_string = "made somewhere"
    for node in nodes(found.graph):
        node.name = "node_1"
        node.doc_string = "File somewhere"
        node.metadata_props["pkg.torch.onnx.stack_trace"] = "File somewhere"
        node.outputs[0].metadata_props["pkg.torch.onnx.original_node_name"] = "add"
    found.graph.node(0).metadata_props[IDEA] = "plan_step"
    return found


def test_every_name_says_branch_operator_and_number(model):
    rename(model)
    assert [node.name for node in nodes(model.graph)] == [
        "Add_0", "Add_1", "Mul_0", "If_0", "left.Add_0", "left.Mul_0", "right.Sub_0", "right.Mul_0",
    ]  # fmt: skip
    for node in nodes(model.graph):
        assert node.outputs[0].name == node.name


def test_no_name_is_used_twice(model):
    rename(model)
    names = Counter(value.name for node in nodes(model.graph) for value in node.outputs)
    names.update(value.name for value in (*model.graph.inputs, *model.graph.initializers.values()))
    for node in nodes(model.graph):
        names.update(value.name for inner in subgraphs(node) for value in inner.inputs)
    assert max(names.values()) == 1, [name for name, count in names.items() if count > 1]


def test_equal_constants_become_one_and_are_named_by_content(model):
    rename(model)
    first, second = model.graph.node(0), model.graph.node(1)
    assert first.inputs[1] is second.inputs[1]
    assert len(model.graph.initializers) == 2
    assert all(name.startswith("constant.float32_2.") for name in model.graph.initializers)
    assert all(name == value.name for name, value in model.graph.initializers.items())


def test_no_metadata_but_our_own(model):
    rename(model)
    kept = [dict(node.metadata_props) for node in nodes(model.graph) if node.metadata_props]
    assert kept == [{IDEA: "plan_step"}]
    assert not model.metadata_props and not model.graph.metadata_props and not model.graph.doc_string
    assert "secret" not in str(ir.to_proto(model)) and "somewhere" not in str(ir.to_proto(model))


def test_torchs_axis_symbols_are_dropped_between_nodes(model):
    """`s77` is the batch in one piece and may be the length in another; inputs keep what the contract gave them."""
    for node in model.graph:
        node.outputs[0].shape = ir.Shape(["s77"])
    rename(model)
    assert all(value.shape is None for node in nodes(model.graph) for value in node.outputs)
    assert all(value.shape is not None for value in (*model.graph.inputs, *model.graph.initializers.values()))


def test_inputs_and_bound_weights_keep_their_names(model):
    weight = model.graph.initializers["two"]
    weight.const_value = None
    rename(model)
    assert model.graph.initializers["two"] is weight
    assert [value.name for value in model.graph.inputs] == ["x", "c"]


def test_results_are_unchanged_and_a_second_run_changes_nothing(model):
    feeds = {"x": np.array([1.5, -2], np.float32), "c": np.array(True)}
    before = GraphSession(ir.to_proto(ir.from_onnx_text(TEXT)).SerializeToString()).run(feeds)["y"]
    rename(model)
    first = ir.to_proto(model).SerializeToString()
    after = GraphSession(first).run(feeds)
    assert np.array_equal(next(iter(after.values())), before)
    rename(model)
    assert ir.to_proto(model).SerializeToString() == first


def test_body_inputs_of_a_scan_do_not_shadow(model):
    text = """<ir_version: 10, opset_import: ["": 24]>
    g (float[2] x, float[3, 2] xs) => (float[2] y, float[3, 2] ys) {
        y, ys = Scan(x, xs) <num_scan_inputs = 1, body = carry (float[2] s, float[2] x2) => (float[2] t, float[2] u) {
            u = Identity(s)  t = Add(u, x2) }>
    }"""
    scan = ir.from_onnx_text(text)
    rename(scan)
    (body,) = subgraphs(scan.graph.node(0))
    assert [value.name for value in body.inputs] == ["carry.s", "carry.x2"]
    assert [value.name for value in scan.graph.outputs] == ["Scan_0.0", "Scan_0.1"]
