"""The decoder is safe when past and present states share their buffers, as GenAI has them under some options.

Raw ONNX Runtime, every present state bound to the very buffer of its past: conv and recurrent states with a growing KV
cache, KV too with a static one. Prefill over several chunks, a prefill of one chunk, further chunks, single tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnxruntime as ort
import pytest

from qwen_export.contract import DECODER, states
from qwen_export.recipe import Recipe
from tests.bound_graph import serialize

LENGTH = 160
GROWING = Recipe(dtype="fp32", target="cpu")
STATIC = Recipe(dtype="fp32", target="cpu", kv_cache="static", max_length=LENGTH)
PLANS = {
    "several chunks, then tokens": (100, 1, 1, 1, 1),
    "one chunk, then tokens": (20, 1, 1, 1),
    "one token first": (1, 1, 40, 1, 1),
    "chunk after chunk": (64, 33, 40, 1, 1),
}
"""Tokens fed by each run; a chunk has 32."""


class Runs:
    """One decoder session, driven with shared or with separate buffers."""

    def __init__(self, tiny_graphs, recipe: Recipe, optimise: bool) -> None:
        built = tiny_graphs.built(DECODER, recipe)
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        if not optimise:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        model = serialize(built.model, built.bindings, tiny_graphs.tensors)
        self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._specs = states(tiny_graphs.config.text, recipe.tensor_dtype, max_length=recipe.static_length)
        self._empty = tiny_graphs.empty_states(1, recipe)
        self._hidden = tiny_graphs.config.text.hidden_size
        self._growing = recipe.static_length is None

    def run(self, plan: tuple[int, ...], *, shared: bool) -> Iterator[dict[str, np.ndarray]]:
        """Logits and all states after each run."""
        rng = np.random.default_rng(7)
        values = {name: ort.OrtValue.ortvalue_from_numpy(array.copy()) for name, array in self._empty.items()}
        past = 0
        for size in plan:
            feeds = {
                "inputs_embeds": rng.standard_normal((1, size, self._hidden)).astype(np.float32),
                "attention_mask": np.ones((1, past + size), np.int64),
                "position_ids": np.broadcast_to(np.arange(past, past + size), (3, 1, size)).copy(),
            }
            binding = self._session.io_binding()
            for name, array in feeds.items():
                binding.bind_cpu_input(name, array)
            binding.bind_output("logits", "cpu")
            for spec in self._specs:
                binding.bind_ortvalue_input(spec.past.name, values[spec.past.name])
                grows = self._growing and spec.kind in ("key", "value")
                if shared and not grows:
                    binding.bind_ortvalue_output(spec.present.name, values[spec.past.name])
                else:
                    binding.bind_output(spec.present.name, "cpu")
            self._session.run_with_iobinding(binding)
            names = ["logits", *(spec.present.name for spec in self._specs)]
            made = dict(zip(names, binding.get_outputs(), strict=True))
            for spec in self._specs:
                before, after = values[spec.past.name], made[spec.present.name]
                if shared and not (self._growing and spec.kind in ("key", "value")):
                    assert after.data_ptr() == before.data_ptr(), "the buffers are not shared"
                else:
                    values[spec.past.name] = after
            past += size
            yield {"logits": made["logits"].numpy().copy()} | {n: v.numpy().copy() for n, v in values.items()}


@pytest.fixture(scope="module", params=["growing", "static"])
def recipe(request) -> Recipe:
    return GROWING if request.param == "growing" else STATIC


@pytest.fixture(scope="module", params=["optimised", "as written"])
def runs(request, recipe, tiny_graphs) -> Runs:
    return Runs(tiny_graphs, recipe, optimise=request.param == "optimised")


@pytest.mark.parametrize("plan", PLANS)
def test_shared_buffers_change_nothing(plan, runs):
    apart = list(runs.run(PLANS[plan], shared=False))
    together = list(runs.run(PLANS[plan], shared=True))
    assert np.abs(apart[-1]["logits"]).max() > 0.1
    for step, (one, other) in enumerate(zip(apart, together, strict=True)):
        for name in one:
            assert np.array_equal(one[name], other[name]), f"run {step} of {PLANS[plan]}: {name}"
