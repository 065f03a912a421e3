"""Rotary angles equal Transformers': frequencies, interleaved position axes, cosines and sines."""

from __future__ import annotations

import pytest
import torch
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding

from qwen_export.model_config import parse_config
from qwen_export.recipe import Recipe
from qwen_export.wrappers.decoder import DecoderPrelude, rotary_axes, rotary_frequencies

SECTIONS = [(11, 11, 10), (4, 3, 1), (6, 5, 5), (3, 3, 2), (8, 0, 0), (2, 3, 3), (1, 1, 6), (0, 4, 4)]


def text_section(sections: tuple[int, ...], theta: float) -> dict:
    return {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 4,
        "head_dim": 8 * sum(sections),
        "hidden_size": 32,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": theta,
            "partial_rotary_factor": 0.25,
            "mrope_section": list(sections),
            "mrope_interleaved": True,
        },
    }


@pytest.mark.parametrize("theta", [1e4, 1e7])
@pytest.mark.parametrize("sections", SECTIONS)
def test_equal_to_transformers(sections, theta):
    raw = text_section(sections, theta)
    config = parse_config(raw)
    judge = Qwen3_5TextRotaryEmbedding(Qwen3_5TextConfig(**{k: v for k, v in raw.items() if k != "model_type"}))
    assert torch.equal(torch.tensor(rotary_frequencies(config.text)), judge.inv_freq)
    torch.manual_seed(0)
    # beyond 32,768 tokens, where half precision would have lost whole radians
    positions = torch.randint(0, 200_000, (3, 2, 7))
    cos, sin = judge(torch.zeros(1), positions)
    prelude = DecoderPrelude({"embed_tokens.weight": torch.zeros(1)}, config, Recipe(dtype="fp32"), text=False)
    _, our_cos, our_sin, *_ = prelude(torch.zeros(2, 7, 32), torch.ones(2, 7, dtype=torch.int64), positions)
    half = sum(sections)
    assert our_cos.dtype == torch.float32 and our_cos.shape == (2, 7, half)
    for ours, theirs in ((our_cos, cos), (our_sin, sin)):
        assert torch.equal(ours, theirs[..., :half]) and torch.equal(ours, theirs[..., half:])


def test_axes_of_the_official_sections():
    config = parse_config(text_section((11, 11, 10), 1e7))
    axes = rotary_axes(config.text)
    assert axes[:6].tolist() == [0, 1, 2, 0, 1, 2]
    assert [int((axes == axis).sum()) for axis in range(3)] == [11, 11, 10]


def test_half_precision_keeps_its_angles_in_float32():
    config = parse_config(text_section((4, 3, 1), 1e4))
    prelude = DecoderPrelude({"embed_tokens.weight": torch.zeros(1)}, config, Recipe(dtype="fp16"), text=False)
    positions = torch.full((3, 1, 1), 70_001)
    _, cos, *_ = prelude(torch.zeros(1, 1, 32, dtype=torch.half), torch.ones(1, 1, dtype=torch.int64), positions)
    assert cos.dtype == torch.float32
    exact = torch.cos(70_001.0 * torch.tensor(rotary_frequencies(config.text)).double())
    assert (cos[0, 0].double() - exact).abs().max() < 5e-3
