"""A present state may lie in the buffer of its past: the same numbers, call after call."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from qwen_export.contract import DECODER
from qwen_export.recipe import Recipe
from tests.bound_graph import GraphSession, carried_on
from tests.parity.test_graph_forms import ALL, STATIC, calls, feed

FORMS = {"growing": ALL, "growing, chunks of 32": Recipe(dtype="fp32", logits="all", target="cpu"), "static": STATIC}


class Aliased:
    """Runs a session with every state of fixed shape bound to one buffer, as input and as output."""

    def __init__(self, session: GraphSession, states: dict[str, np.ndarray], fixed: set[str]) -> None:
        self.session = session.session
        self.buffers = {name: ort.OrtValue.ortvalue_from_numpy(value) for name, value in states.items()}
        self.fixed = fixed

    def run(self, call: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One call; the buffers hold the new states afterwards."""
        binding, given = self.session.io_binding(), {}
        for value in self.session.get_inputs():
            if value.name in call:
                # the binding does not keep the array alive
                given[value.name] = np.ascontiguousarray(call[value.name])
                binding.bind_cpu_input(value.name, given[value.name])
            else:
                binding.bind_ortvalue_input(value.name, self.buffers[value.name])
        for value in self.session.get_outputs():
            past = value.name.replace("present.", "past_key_values.", 1)
            if past in self.fixed:
                binding.bind_ortvalue_output(value.name, self.buffers[past])
            else:
                binding.bind_output(value.name)
        self.session.run_with_iobinding(binding)
        names = [value.name for value in self.session.get_outputs()]
        outputs = dict(zip(names, binding.get_outputs(), strict=True))
        # a shared buffer stays: on the CPU its bytes belong to the first array, which only the first value keeps alive
        self.buffers |= {past: value for past, value in carried_on(outputs).items() if past not in self.fixed}
        return {name: value.numpy().copy() for name, value in outputs.items()}


@pytest.mark.parametrize("pads", [(0,), (0, 9)])
@pytest.mark.parametrize("form", FORMS)
def test_sharing_a_buffer_changes_nothing(form, pads, tiny_graphs):
    recipe = FORMS[form]
    session = tiny_graphs.session(DECODER, recipe)
    past = tiny_graphs.empty_states(len(pads), recipe)
    fixed = {name for name in past if recipe.static_length or name.endswith("_state")}
    aliased = Aliased(session, {name: value.copy() for name, value in past.items()}, fixed)
    for call in calls(tiny_graphs, pads):
        wanted = feed(session, call, past)
        got = aliased.run(call)
        for name, value in wanted.items():
            assert np.array_equal(got[name], value), f"{name} after {call['attention_mask'].shape[1]} tokens"
        past = carried_on(wanted)
