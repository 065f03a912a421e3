"""Attention over a cache: one standard operator, no mask where nothing is padded, equal to the eager operator."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qwen_export.passes.lower_cached_attention import lower_cached_attention
from qwen_export.wrappers.decoder_operators import cached_attention, plan_step
from tests.passes.one_node import branch, nodes, one_node, operators, run, top_level

HEADS, KV_HEADS, WIDTH, MAX = 6, 2, 8, 24
OUTPUTS = {"out": "float32", "present_key": "float32", "present_value": "float32"}


def model(*, static: bool = False, length: int | str = "sequence"):
    past = ("float32", ("batch", KV_HEADS, MAX if static else "past", WIDTH))
    inputs = {
        "query": ("float32", ("batch", length, HEADS * WIDTH)),
        "key": ("float32", ("batch", length, KV_HEADS * WIDTH)),
        "value": ("float32", ("batch", length, KV_HEADS * WIDTH)),
        "past_key": past,
        "past_value": past,
        "unpadded": ("bool", ()),
        "attention_bias": ("float32", ("a", 1, "b", "c")),
        "kv_length": ("int64", ("batch",)),
    }
    return one_node(
        "cached_attention", inputs, {"num_heads": HEADS, "kv_heads": KV_HEADS, "static": int(static)}, OUTPUTS
    )


def feeds(length: int, past: int, pads: tuple[int, ...], *, static: bool = False, rest: float = 0.0):
    """rest: what the slots of a static cache hold that no token has filled."""
    rng, batch = np.random.default_rng(length + past), len(pads)
    given = {
        name: rng.standard_normal((batch, length, heads * WIDTH)).astype(np.float32)
        for name, heads in (("query", HEADS), ("key", KV_HEADS), ("value", KV_HEADS))
    }
    for name in ("past_key", "past_value"):
        given[name] = rng.standard_normal((batch, KV_HEADS, past, WIDTH)).astype(np.float32)
        if static:
            tail = np.full((batch, KV_HEADS, MAX - past, WIDTH), rest, np.float32)
            given[name] = np.concatenate([given[name], tail], axis=2)
    mask = np.ones((batch, past + length), np.int64)
    for row, pad in enumerate(pads):
        mask[row, :pad] = 0
    plan = plan_step(torch.zeros(batch, length, 1), torch.tensor(mask), 8, MAX if static else 0)
    given["unpadded"] = plan[4].numpy()
    given["attention_bias"] = plan[5].numpy() if any(pads) else np.zeros((1, 1, 1, 1), np.float32)
    given["kv_length"] = plan[6].numpy()
    return given, plan[5].numpy(), mask


def check(lowered, given, bias, mask, *, static: bool):
    got = run(lowered, {k: v for k, v in given.items() if k in {i.name for i in lowered.graph.inputs}})
    args = [torch.tensor({**given, "attention_bias": bias}[name]) for name in given]
    wanted = [value.numpy() for value in cached_attention(*args, HEADS, KV_HEADS, static)]
    length = given["query"].shape[1]
    real = mask[:, -length:] > 0
    for name in OUTPUTS:
        assert np.isfinite(got[name]).all(), f"{name}: a pad may hold anything finite, never NaN"
    # float32 sums of at most 24 terms of order 1
    assert np.abs(got["out"] - wanted[0])[real].max() < 2e-6
    assert np.array_equal(got["present_key"], wanted[1]) and np.array_equal(got["present_value"], wanted[2])


CASES = [(1, 0, (0,)), (1, 9, (0, 0)), (5, 0, (0, 3)), (5, 7, (0, 0)), (5, 7, (4, 0)), (6, 3, (2, 5)), (1, 6, (3, 0))]


@pytest.mark.parametrize(("length", "past", "pads"), CASES)
def test_growing_cache_equals_the_eager_operator(length, past, pads):
    lowered = model()
    assert lower_cached_attention(lowered) == 1
    check(lowered, *feeds(length, past, pads), static=False)


@pytest.mark.parametrize(("length", "past", "pads"), CASES)
def test_static_cache_equals_the_eager_operator(length, past, pads):
    lowered = model(static=True)
    assert lower_cached_attention(lowered) == 1
    check(lowered, *feeds(length, past, pads, static=True), static=True)


@pytest.mark.parametrize("past", [0, 9, MAX - 1])
def test_single_step_equals_the_eager_operator(past):
    lowered = model(static=True, length=1)
    assert lower_cached_attention(lowered, single_step=True) == 1
    check(lowered, *feeds(1, past, (0, 0), static=True), static=True)


def test_a_row_without_any_visible_key_is_finite():
    lowered = model()
    lower_cached_attention(lowered)
    given, _, _ = feeds(4, 0, (4, 0))
    assert all(np.isfinite(value).all() for value in run(lowered, given).values())


@pytest.mark.parametrize("pads", [(0, 0), (0, 2)])
def test_unfilled_slots_of_a_static_cache_are_not_seen(pads):
    lowered = model(static=True)
    lower_cached_attention(lowered)
    outs = [run(lowered, feeds(3, 5, pads, static=True, rest=rest)[0])["out"] for rest in (0.0, 1e4)]
    assert np.array_equal(*outs)


def test_unpadded_attention_takes_no_mask_and_padded_attention_is_not_causal_twice():
    lowered = model()
    lower_cached_attention(lowered)
    assert top_level(lowered.graph) == ["If"]
    (unpadded,) = branch(lowered.graph, "unpadded")
    (padded,) = branch(lowered.graph, "padded")
    assert unpadded.op_type == padded.op_type == "Attention"
    assert unpadded.inputs[3] is None and unpadded.attributes["is_causal"].as_int() == 1
    assert padded.inputs[3].name == "attention_bias" and "is_causal" not in padded.attributes


def test_a_static_cache_is_written_outside_the_branches():
    lowered = model(static=True)
    lower_cached_attention(lowered)
    assert top_level(lowered.graph).count("TensorScatter") == 2
    assert operators(lowered.graph)["TensorScatter"] == 2
    for node in nodes(lowered.graph):
        if node.op_type == "If":
            assert len(node.outputs) == 1, "the If hands on the attention's result, never the cache"


def test_single_step_has_no_branches():
    lowered = model(static=True, length=1)
    lower_cached_attention(lowered, single_step=True)
    assert operators(lowered.graph)["Attention"] == 1
    assert not {"If", "Loop", "Scan", "Transpose"} & set(operators(lowered.graph))


def test_second_run_changes_nothing():
    for static in (False, True):
        lowered = model(static=static)
        lower_cached_attention(lowered)
        before = top_level(lowered.graph)
        assert lower_cached_attention(lowered) == 0
        assert top_level(lowered.graph) == before
