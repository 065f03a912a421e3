"""Every number of the checkpoint goes into the graphs, once; every weight of the graphs comes from the checkpoint.

Each checkpoint value gets a number of its own, the bindings are carried out on them, and the numbers are counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from qwen_export.checkpoint import expected_tensors
from qwen_export.contract import COMPONENTS, DECODER, EMBEDDING, TEXT
from qwen_export.recipe import Recipe
from qwen_export.wrappers.piece import evaluate

RECIPE = Recipe(dtype="fp32", logits="all")


@pytest.fixture(scope="module")
def numbered(tiny_config):
    """Tensors whose values are consecutive numbers from 1, exact in float32; and the first number of each."""
    tensors, first, begin = {}, {}, 1
    for key, shape in expected_tensors(tiny_config, COMPONENTS).items():
        count = int(np.prod(shape))
        tensors[key] = torch.arange(begin, begin + count, dtype=torch.float32).reshape(shape)
        first[key] = begin
        begin += count
    assert begin < 1 << 24
    return tensors, first


def used(built, tensors) -> Counter[int]:
    """Number -> how often the graph's weights hold it."""
    counts: Counter[int] = Counter()
    for name, binding in built.bindings.items():
        value = evaluate(replace(binding, transform="identity"), tensors)
        assert tuple(value.shape) == binding.shape == tuple(built.model.graph.initializers[name].shape)
        counts.update(value.abs().flatten().long().tolist())
    return counts


@pytest.mark.parametrize("component", [EMBEDDING, DECODER, TEXT])
def test_every_value_is_used_once(component, numbered, tiny_graphs):
    tensors, first = numbered
    config = tiny_graphs.config
    counts = used(tiny_graphs.built(component, RECIPE), tensors)
    text = config.text
    repeats = {"q_norm.weight": text.num_attention_heads, "k_norm.weight": text.num_key_value_heads}
    for key in expected_tensors(config, (component,)):
        times = next((n for name, n in repeats.items() if key.endswith(name)), 1)
        values = range(first[key], first[key] + tensors[key].numel())
        assert {counts[value] for value in values} == {times}, key
        for value in values:
            del counts[value]
    # what is left are the constant blocks of the gates: zeros in front of dt_bias and A_log
    zeros = 2 * text.linear_num_value_heads * len(text.linear_layers)
    assert counts == ({0: zeros} if component != EMBEDDING else {})


@pytest.mark.parametrize("component", [EMBEDDING, DECODER, TEXT])
def test_every_weight_without_data_is_bound_and_no_other(component, tiny_graphs):
    built = tiny_graphs.built(component, RECIPE)
    initializers = built.model.graph.initializers
    unbound = {name for name, value in initializers.items() if value.const_value is None}
    assert list(built.bindings) == [name for name in initializers if name in built.bindings]
    assert unbound == set(built.bindings)


def test_constants_are_small_and_named_by_content(tiny_graphs):
    """What is no weight comes from the config: masks, shapes, angles. The checkpoint has no part in it."""
    built = tiny_graphs.built(DECODER, RECIPE)
    constants = [v for n, v in built.model.graph.initializers.items() if n not in built.bindings]
    assert all(value.name.startswith("constant.") for value in constants)
    assert sum(value.const_value.nbytes for value in constants) < 160_000


def test_float32_islands_are_float32_in_half_precision(tiny_graphs):
    """Norms, gates, decay and the convolution keep the checkpoint's own values; matrices take the model dtype."""
    built = tiny_graphs.built(DECODER, Recipe(dtype="fp16"))
    kinds = {name.rsplit(".", 1)[-1]: binding.dtype for name, binding in built.bindings.items()}
    islands = {name for name, dtype in kinds.items() if dtype == "float32"}
    assert {"gate_bias", "gate_scale", "mixer_norm", "norm", "qk_norm", "input_layernorm"} <= islands
    assert {"in_proj", "in_proj_qkv", "in_proj_zba", "out_proj", "o_proj", "lm_head", "down_proj"} <= {
        name for name, dtype in kinds.items() if dtype == "float16"
    }
