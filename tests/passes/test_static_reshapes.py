"""Reshapes whose target the axes already say get it as a constant."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qwen_export.passes.static_reshapes import static_reshapes, static_target
from tests.bound_graph import GraphSession

TEXT = """<ir_version: 10, opset_import: ["": 24]>
g (float[{before}] x) => (float{after} y)
<int64[1] begin = {{{begin}}}, int64[1] end = {{{end}}}, int64[{size}] rest = {{{rest}}}> {{
    shape = Shape(x)
    kept = Slice(shape, begin, end)
    target = Concat <axis = 0> (kept, rest)
    y = Reshape <allowzero = 1> (x, target)
}}"""
X = np.arange(2 * 5 * 24, dtype=np.float32).reshape(2, 5, 24)


def model(before: str, after: str, kept: tuple[int, int], rest: list[int]) -> ir.Model:
    """A Reshape as torch spells it: kept axes, then numbers."""
    begin, end = kept
    after = f"[{after}]" if after else ""
    numbers = ", ".join(map(str, rest))
    return ir.from_onnx_text(
        TEXT.format(before=before, after=after, begin=begin, end=end, size=len(rest), rest=numbers)
    )


@pytest.mark.parametrize(
    ("before", "after", "kept", "rest", "target"),
    [
        ("B, S, 24", "B, S, 6, 4", (0, 2), [6, 4], [0, 0, 6, 4]),
        ("B, S, 24", "B, Z, 12", (0, 1), [-1, 12], [0, -1, 12]),
        ("B, S, 24", "Z, 24", (9, 9), [-1, 24], [-1, 24]),
        ("2, S, 24", "2, S, 2, 12", (0, 2), [2, 12], [2, 0, 2, 12]),
        # the symbol stands elsewhere in the input: it is the only one, so -1 may stand for it
        ("2, S, 24", "S, 48", (1, 2), [48], [-1, 48]),
    ],
)
def test_the_target_becomes_a_constant(before, after, kept, rest, target):
    graph = model(before, after, kept, rest)
    wanted = GraphSession(ir.to_proto(graph).SerializeToString()).run({"x": X})["y"]
    assert static_reshapes(graph) == 1
    reshape = graph.graph.node(-1)
    assert reshape.inputs[1].const_value.numpy().tolist() == target
    assert reshape.inputs[1].name in graph.graph.initializers
    # 0 means "copy" only without allowzero
    assert "allowzero" not in reshape.attributes
    got = GraphSession(ir.to_proto(graph).SerializeToString()).run({"x": X})["y"]
    assert np.array_equal(got, wanted)


@pytest.mark.parametrize(
    ("case", "before", "after", "kept", "rest"),
    [
        ("1: two axes that neither stay nor are alone", "B, S, 24", "Y, Z, 24", (0, 2), [24]),
        ("1: two axes that change places", "B, S, 24", "S, B, 24", (0, 2), [24]),
        ("2: shape after is unknown", "B, S, 24", "", (0, 2), [24]),
    ],
)
def test_declines(case, before, after, kept, rest):
    graph = model(before, after, kept, rest)
    if not after:
        graph.graph.outputs[0].shape = None
    assert static_target(graph.graph.node(-1)) is None, case
    assert static_reshapes(graph) == 0
    assert [node.op_type for node in graph.graph] == ["Shape", "Slice", "Concat", "Reshape"]
    assert graph.graph.node(-1).attributes["allowzero"].as_int() == 1


def test_declines_2_shape_before_is_unknown():
    graph = model("B, S, 24", "B, S, 24", (0, 2), [24])
    graph.graph.inputs[0].shape = None
    assert static_reshapes(graph) == 0


def test_declines_3_second_run_changes_nothing():
    graph = model("B, S, 24", "B, S, 6, 4", (0, 2), [6, 4])
    assert static_reshapes(graph) == 1
    assert static_target(graph.graph.node(-1)) is None
    assert static_reshapes(graph) == 0


def test_equal_targets_are_one_constant():
    graph = model("B, S, 24", "B, S, 6, 4", (0, 2), [6, 4])
    first = graph.graph.node(-1)
    second = ir.node("Reshape", first.inputs, {"allowzero": 1})
    second.outputs[0].name, second.outputs[0].shape = "z", first.outputs[0].shape
    graph.graph.append(second)
    before = set(graph.graph.initializers)
    assert static_reshapes(graph) == 2
    assert first.inputs[1] is second.inputs[1]
    assert len(set(graph.graph.initializers) - before) == 1


NESTED = """<ir_version: 10, opset_import: ["": 24]>
g (float[B, 24] x, bool c) => (float[B, 6, 4] y) <int64[2] rest = {6, 4}, int64[1] begin = {0}, int64[1] end = {1}> {
    y = If(c) <
        then_branch = a () => (float[B, 6, 4] p) {
            n = Shape(x)  m = Slice(n, begin, end)  t = Concat <axis = 0> (m, rest)  p = Reshape(x, t) },
        else_branch = b () => (float[B, 6, 4] q) {
            o = Shape(x)  k = Slice(o, begin, end)  u = Concat <axis = 0> (k, rest)  q = Reshape(x, u) }
    >
}"""


def test_subgraphs_are_left_alone():
    """Lowerings write their branches with constant targets already; only torch's own spelling needs the pass."""
    graph = ir.from_onnx_text(NESTED)
    assert static_reshapes(graph) == 0
