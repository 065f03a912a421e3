"""The plan of a step gives what the eager operator gives, and a decode step computes none of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qwen_export.passes.lower_plan_step import lower_plan_step
from qwen_export.wrappers.decoder_operators import plan_step
from tests.passes.one_node import branch, one_node, operators, run, top_level

NAMES = ("single_step", "token_mask", "chunk_index", "chunk_mask", "unpadded", "attention_bias", "kv_length")
CHUNK = 8


def model(dtype: str = "float32", *, max_length: int = 0):
    inputs = {"embeds": (dtype, ("batch", "sequence", 4)), "mask": ("int64", ("batch", "total"))}
    kinds = ("bool", dtype, "int64", "float32", "bool", dtype, "int64")
    attributes = {"chunk": CHUNK, "max_length": max_length}
    return one_node("plan_step", inputs, attributes, dict(zip(NAMES, kinds, strict=True)))


def feeds(batch: int, length: int, past: int, pads: tuple[int, ...], dtype: str = "float32") -> dict[str, np.ndarray]:
    mask = np.ones((batch, past + length), dtype=np.int64)
    for row, pad in enumerate(pads):
        mask[row, :pad] = 0
    return {"embeds": np.zeros((batch, length, 4), dtype=dtype), "mask": mask}


def expected(given: dict[str, np.ndarray], max_length: int = 0) -> dict[str, np.ndarray]:
    plan = plan_step(torch.tensor(given["embeds"]), torch.tensor(given["mask"]), CHUNK, max_length)
    return dict(zip(NAMES, (value.numpy() for value in plan), strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("max_length", [0, 40])
@pytest.mark.parametrize(
    ("length", "past", "pads"),
    [(2, 0, (0, 0)), (7, 0, (0, 3)), (8, 0, (2, 8)), (9, 5, (0, 6)), (17, 0, (0, 17)), (24, 3, (0, 0)), (2, 1, (1, 0))],
)
def test_equals_the_eager_operator(length, past, pads, max_length, dtype):
    lowered = model(dtype, max_length=max_length)
    assert lower_plan_step(lowered) == 1
    given = feeds(2, length, past, pads, dtype)
    got, wanted = run(lowered, given), expected(given, max_length)
    for name in NAMES:
        if name == "attention_bias" and not any(pads):
            assert got[name].size == 1, "nothing is padded, so no [S, T] bias may exist"
            continue
        assert got[name].dtype == wanted[name].dtype, name
        assert np.array_equal(got[name], wanted[name]), name


def test_the_bias_of_a_hidden_key_is_finite():
    lowered = model("float16")
    lower_plan_step(lowered)
    bias = run(lowered, feeds(1, 3, 0, (2,), "float16"))["attention_bias"]
    assert np.isfinite(bias).all()
    assert bias.min() == np.finfo(np.float16).min


@pytest.mark.parametrize("pads", [(0, 0), (0, 4)])
def test_a_single_token_plans_no_chunks(pads):
    lowered = model()
    lower_plan_step(lowered)
    given = feeds(2, 1, 9, pads)
    got, wanted = run(lowered, given), expected(given)
    assert got["single_step"]
    assert {got[name].size for name in ("token_mask", "chunk_index", "chunk_mask")} == {1}
    assert bool(got["unpadded"]) == bool(wanted["unpadded"]) == (not any(pads))
    assert np.array_equal(got["kv_length"], [10, 10])
    if any(pads):
        assert np.array_equal(got["attention_bias"], wanted["attention_bias"])


def test_a_decode_step_computes_masks_nowhere():
    lowered = model()
    lower_plan_step(lowered)
    assert set(operators(branch(lowered.graph, "one_token"))) == {"Identity"}
    assert set(operators(branch(lowered.graph, "no_bias"))) == {"Identity"}
    # what stays outside the branches: two flags from shapes and the mask's minimum
    outside = ["Shape", "Squeeze", "Equal", "ReduceMin", "Equal", "If", "If", "Shape", "Shape", "Expand"]
    assert top_level(lowered.graph) == outside


def test_single_step_says_where_the_last_token_lies():
    lowered = model(max_length=6)
    assert lower_plan_step(lowered, single_step=True) == 1
    assert not {"If", "Loop", "Scan"} & set(operators(lowered.graph))
    mask = np.array([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    got = run(lowered, {"embeds": np.zeros((2, 1, 4), np.float32), "mask": mask})
    assert np.array_equal(got["kv_length"], [2, 6])


def test_second_run_changes_nothing():
    lowered = model()
    lower_plan_step(lowered)
    before = top_level(lowered.graph)
    assert lower_plan_step(lowered) == 0
    assert top_level(lowered.graph) == before
