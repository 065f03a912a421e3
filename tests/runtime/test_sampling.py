"""Filters equal Transformers' logits processors; every end token counts."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from qwen_export.errors import UsageError
from qwen_export.model_config import parse_config
from qwen_export.runtime.sampling import Sampler, Sampling, end_tokens, filtered


@pytest.mark.parametrize("temperature, top_k, top_p", [(0.7, 0, 1.0), (1.0, 5, 1.0), (0.6, 20, 0.95), (1.3, 0, 0.3)])
def test_filters_equal_transformers(temperature, top_k, top_p):
    logits = np.random.default_rng(0).normal(size=(4, 200)) * 3
    scores = torch.from_numpy(logits / temperature)
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    ours = filtered(logits, Sampling(temperature, top_k, top_p))
    assert np.array_equal(np.isinf(ours), torch.isinf(scores).numpy())
    assert np.allclose(ours, scores.numpy())


def test_greedy_takes_the_first_maximum_and_a_seed_repeats():
    logits = np.array([[0.0, 2.0, 2.0], [5.0, 1.0, 0.0]], np.float32)
    assert Sampler(Sampling()).choose(logits).tolist() == [1, 0]
    noise = np.random.default_rng(1).normal(size=(3, 50)).astype(np.float32)
    draws = [[Sampler(Sampling(1.0, seed=7)).choose(noise).tolist() for _ in range(1)] for _ in range(2)]
    assert draws[0] == draws[1]
    sampler = Sampler(Sampling(1.0, seed=7))
    assert len({tuple(sampler.choose(noise)) for _ in range(20)}) > 5


def test_frequencies_follow_the_probabilities():
    logits = np.tile(np.log([[0.7, 0.2, 0.1]]), (4000, 1))
    counts = np.bincount(Sampler(Sampling(1.0, seed=0)).choose(logits), minlength=3) / 4000
    assert np.abs(counts - [0.7, 0.2, 0.1]).max() < 0.03


def test_overflow_is_an_error_not_token_zero():
    with pytest.raises(UsageError, match="not finite"):
        Sampler(Sampling()).choose(np.array([[np.nan, 1.0]]))


@pytest.mark.parametrize("values", [{"temperature": -1}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.5}])
def test_impossible_settings_are_refused(values):
    with pytest.raises(UsageError, match="must be"):
        Sampling(**values)


def config(top, text):
    return parse_config({"model_type": "qwen3_5_text", "eos_token_id": top, "text_config": {"eos_token_id": text}})


@pytest.mark.parametrize("given", [[5, 6], 5, None, "absent"])
@pytest.mark.parametrize("top, text", [(7, 8), (None, 8), (None, None)])
def test_end_tokens_are_those_of_transformers(tmp_path, given, top, text):
    raw = {"model_type": "qwen3_5", "eos_token_id": top, "text_config": {"eos_token_id": text}}
    if given == "absent":
        judge = GenerationConfig.from_model_config(raw)
    else:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": given}), encoding="utf-8")
        judge = GenerationConfig.from_pretrained(str(tmp_path), local_files_only=True)
    expected = judge.eos_token_id if isinstance(judge.eos_token_id, list) else [judge.eos_token_id]
    ours = end_tokens(tmp_path, config(top, text))
    if expected == [None]:
        assert ours == ({top} if top else {text} if text else set())
    else:
        assert ours == set(expected)
