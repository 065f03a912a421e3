"""Stamped layers equal one trace of the whole model, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qwen_export.contract import DECODER, decoder_contract
from qwen_export.passes.pipeline import lower
from qwen_export.recipe import Recipe
from qwen_export.tracing.trace import trace, without_weight_data
from qwen_export.wrappers.decoder import layer_prefix
from qwen_export.wrappers.upstream import meta_ends, meta_layer, whole_decoder
from tests.bound_graph import GraphSession, TinyGraphs, serialize

RECIPE = Recipe(dtype="fp32", logits="all")
CASES = [(1, 1, 0, 0), (1, 1, 9, 0), (2, 70, 0, 0), (2, 130, 5, 3), (1, 5, 7, 4)]
"""Batch, new tokens, past tokens, padding of the last row."""


@pytest.fixture(scope="module")
def whole(tiny_graphs: TinyGraphs) -> GraphSession:
    """The whole decoder traced as one module, then lowered as one piece."""
    config = tiny_graphs.config
    tensors = meta_ends(config)
    for layer in range(config.text.num_hidden_layers):
        tensors |= {layer_prefix(layer) + name: value for name, value in meta_layer(config, layer).items()}
    wrapper = whole_decoder(config, RECIPE, tensors)
    contract = decoder_contract(config, RECIPE.tensor_dtype, logits=RECIPE.logits)
    model = trace(wrapper, contract.inputs, [spec.name for spec in contract.outputs], nested_from=3)
    bindings, constants = {}, {}
    for name, piece in wrapper.named_modules():
        bindings |= {f"{name}.{own}": binding for own, binding in getattr(piece, "bindings", {}).items()}
        constants |= {f"{name}.{own}": value for own, value in getattr(piece, "constants", {}).items()}
    without_weight_data(model, bindings, constants)
    lower(model, RECIPE)
    for value, spec in zip(model.graph.outputs, contract.outputs, strict=True):
        value.name = spec.name
    used = {name: binding for name, binding in bindings.items() if name in model.graph.initializers}
    assert used.keys() == bindings.keys(), "a weight was lost on the way"
    return GraphSession(serialize(model, used, tiny_graphs.tensors))


def feeds(graphs: TinyGraphs, batch: int, length: int, past: int, pad: int) -> dict[str, Any]:
    rng = np.random.default_rng(batch * 1000 + length + past)
    mask = np.ones((batch, past + length), np.int64)
    mask[-1, :pad] = 0
    given = {
        "inputs_embeds": rng.standard_normal((batch, length, graphs.config.text.hidden_size)).astype(np.float32),
        "attention_mask": mask,
        "position_ids": np.broadcast_to(np.arange(past, past + length), (3, batch, length)),
    }
    for name, empty in graphs.empty_states(batch, RECIPE).items():
        shape = [past if size == 0 else size for size in empty.shape]
        given[name] = (rng.standard_normal(shape) * 0.5).astype(np.float32)
    return given


@pytest.mark.parametrize(("batch", "length", "past", "pad"), CASES)
def test_stamped_equals_whole_bit_for_bit(batch, length, past, pad, whole, tiny_graphs):
    given = feeds(tiny_graphs, batch, length, past, pad)
    stamped = tiny_graphs.session(DECODER, RECIPE)
    assert stamped.outputs == whole.outputs and stamped.inputs == whole.inputs
    got, wanted = stamped.run(given), whole.run(given)
    for name, value in wanted.items():
        assert np.array_equal(got[name], value, equal_nan=True), name
        assert np.isfinite(value).all(), name
