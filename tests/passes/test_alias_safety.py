"""Present states may be written over their pasts: proven on every form of the decoder; the proof catches a fault."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from qwen_export.contract import DECODER, TEXT, states
from qwen_export.recipe import Recipe
from tests.passes.alias_safety import hazards

FORMS = {
    "growing": (DECODER, Recipe(dtype="fp32", logits="all"), False),
    "text": (TEXT, Recipe(dtype="fp32"), False),
    "static": (DECODER, Recipe(dtype="fp32", kv_cache="static", max_length=48), False),
    "decode graph": (DECODER, Recipe(dtype="fp32", kv_cache="static", max_length=48), True),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_read_of_a_past_state_comes_first(form, tiny_graphs):
    component, recipe, single_step = FORMS[form]
    graph = tiny_graphs.built(component, recipe, single_step=single_step).model.graph
    values = {value.name: value for value in (*graph.inputs, *graph.outputs)}
    carried = states(tiny_graphs.config.text, "float32", max_length=recipe.static_length)
    assert len(carried) == 16
    for state in carried:
        assert not hazards(graph, values[state.past.name], values[state.present.name])


SAFE = """<ir_version: 10, opset_import: ["": 24]>
g (float[2] past, float[2] x) => (float[2] present, float[2] y) {
    y = Mul(past, x)
    present = Add(y, x)
}"""
UNSAFE = SAFE.replace("present = Add(y, x)", "present = Add(past, x)")
UNSAFE_INSIDE = """<ir_version: 10, opset_import: ["": 24]>
g (float[2] past, float[2] x, bool c) => (float[2] present, float[2] y) {
    present, y = If(c) <
        then_branch = a () => (float[2] p, float[2] q) { p = Add(past, x)  q = Mul(past, x) },
        else_branch = b () => (float[2] r, float[2] s) { s = Mul(past, x)  r = Add(s, x) }
    >
}"""


@pytest.mark.parametrize(("text", "count"), [(SAFE, 0), (UNSAFE, 1), (UNSAFE_INSIDE, 1)])
def test_the_proof_finds_a_late_reader(text, count):
    graph = ir.from_onnx_text(text).graph
    assert len(hazards(graph, graph.inputs[0], graph.outputs[0])) == count
