"""The inventory against Transformers' own modules, and against the public figures of the 27B model."""

from __future__ import annotations

from math import prod

import pytest

from qwen_export.checkpoint import components_of, config_names, expected_tensors, load_config, mtp_tensors, open_config
from qwen_export.contract import COMPONENTS, DECODER, EMBEDDING, TEXT, VISION_ENCODER
from qwen_export.errors import InternalError
from qwen_export.model_config import parse_config


@pytest.mark.parametrize("name", config_names())
def test_names_and_shapes_are_those_of_transformers(name: str) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, Qwen3_5ForConditionalGeneration

    config = AutoConfig.for_model(**load_config(name))
    with torch.device("meta"):
        model = Qwen3_5ForConditionalGeneration(config)
    theirs = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    assert expected_tensors(open_config(name), COMPONENTS) == theirs


def test_the_27b_model_adds_up_to_the_public_figures() -> None:
    config = open_config("qwen3.8-27b")
    model = expected_tensors(config, COMPONENTS)
    assert 2 * sum(map(prod, model.values())) == 54_713_457_120
    assert 2 * sum(map(prod, mtp_tensors(config, 1).values())) == 849_398_784
    assert len(expected_tensors(config, [VISION_ENCODER])) == 333


def test_components_share_nothing_and_text_is_embedding_and_decoder() -> None:
    config = open_config("tiny")
    vision, embedding, decoder = (expected_tensors(config, [name]) for name in COMPONENTS)
    assert not vision.keys() & embedding.keys() and not embedding.keys() & decoder.keys()
    assert expected_tensors(config, [TEXT]) == expected_tensors(config, [EMBEDDING, DECODER])
    assert components_of(config) == COMPONENTS


def test_a_text_only_config_has_one_component() -> None:
    config = parse_config(load_config("tiny")["text_config"])
    assert components_of(config) == (TEXT,)
    with pytest.raises(InternalError):
        expected_tensors(config, [VISION_ENCODER])


def test_an_unknown_component_is_our_fault() -> None:
    with pytest.raises(InternalError, match="speech"):
        expected_tensors(open_config("tiny"), ["speech"])
