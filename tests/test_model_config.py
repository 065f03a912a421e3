"""The facts of a model, read without Transformers, are the facts that Transformers reads."""

from __future__ import annotations

import copy
import json
from dataclasses import fields
from typing import Any

import pytest
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5Config, Qwen3_5TextConfig, Qwen3_5VisionConfig

from qwen_export.checkpoint import load_config
from qwen_export.errors import CheckpointError
from qwen_export.model_config import TextConfig, VisionConfig, parse_config, read_config

ROPE = ("rope_theta", "partial_rotary_factor", "mrope_section")


def transformers_text(raw: dict[str, Any]) -> Qwen3_5TextConfig:
    return Qwen3_5TextConfig(**{key: value for key, value in raw.items() if key != "model_type"})


def check_text(ours: TextConfig, theirs: Any) -> None:
    for field in fields(TextConfig):
        if field.name in ROPE:
            wanted = theirs.rope_parameters.get(field.name, getattr(ours, field.name))
        else:
            wanted = getattr(theirs, field.name)
        got = getattr(ours, field.name)
        assert (list(got) if isinstance(got, tuple) else got) == (
            list(wanted) if isinstance(wanted, (list, tuple)) else wanted
        ), field.name


def check_vision(ours: VisionConfig, theirs: Any) -> None:
    for field in fields(VisionConfig):
        if field.name == "rope_theta":
            assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
        else:
            assert getattr(ours, field.name) == getattr(theirs, field.name), field.name


def test_text_defaults_are_transformers():
    check_text(parse_config({"model_type": "qwen3_5_text"}).text, Qwen3_5TextConfig())


def test_vision_defaults_are_transformers():
    theirs = Qwen3_5VisionConfig(out_hidden_size=4096)
    raw = {"model_type": "qwen3_5", "text_config": {}, "vision_config": {"out_hidden_size": 4096}}
    ours = parse_config(raw).vision
    assert ours is not None
    check_vision(ours, theirs)
    assert VisionConfig().out_hidden_size == Qwen3_5VisionConfig().out_hidden_size


def test_token_ids_and_tying_default_as_in_transformers():
    ours = parse_config({"model_type": "qwen3_5", "text_config": {}, "vision_config": {"out_hidden_size": 4096}})
    theirs = Qwen3_5Config()
    for name in (
        "image_token_id",
        "video_token_id",
        "vision_start_token_id",
        "vision_end_token_id",
        "tie_word_embeddings",
    ):
        assert getattr(ours, name) == getattr(theirs, name)


@pytest.mark.parametrize("name", ["tiny", "mid", "qwen3.8-27b"])
def test_named_configs_are_read_alike(name):
    raw = load_config(name)
    ours, theirs = parse_config(raw), Qwen3_5Config(**copy.deepcopy(raw))
    check_text(ours.text, theirs.text_config)
    assert ours.vision is not None
    check_vision(ours.vision, theirs.vision_config)
    assert ours.raw == raw


def test_the_official_facts():
    config = parse_config(load_config("qwen3.8-27b"))
    text, vision = config.text, config.vision
    assert vision is not None
    assert (text.conv_dim, text.key_dim, text.value_dim, text.rotary_dim) == (10240, 2048, 6144, 64)
    assert text.full_layers == tuple(range(3, 64, 4)) and len(text.linear_layers) == 48
    assert (vision.head_dim, vision.patch_width, vision.grid_side, vision.merge_unit) == (72, 1536, 48, 4)
    assert (config.image_token_id, config.video_token_id) == (248056, 248057)
    assert not config.tie_word_embeddings


TINY = load_config("tiny")


def changed(**changes: Any) -> dict[str, Any]:
    """The tiny config with some values replaced, `text__x` and `vision__x` in the inner ones."""
    raw = copy.deepcopy(TINY)
    for key, value in changes.items():
        section, _, name = key.rpartition("__")
        (raw[f"{section}_config"] if section else raw)[name] = value
    return raw


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (changed(model_type="qwen3_5_moe"), "mixture-of-experts"),
        (changed(model_type="qwen3_vl"), "qwen3_vl"),
        (changed(quantization_config={"quant_method": "gptq"}), "gptq"),
        (changed(text__layer_types=["linear_attention"]), "layer_types"),
        (changed(text__layer_types=["sliding_attention"] * 8), "sliding_attention"),
        (changed(text__hidden_act="gelu"), "hidden_act"),
        (changed(text__attention_bias=True), "attention_bias"),
        (changed(text__num_key_value_heads=4), "num_attention_heads"),
        (changed(text__linear_num_key_heads=4), "linear_num_value_heads"),
        (changed(text__rope_parameters={"rope_type": "yarn", "mrope_section": [4, 3, 1]}), "yarn"),
        (changed(text__rope_parameters={"mrope_section": [4, 3, 2], "partial_rotary_factor": 0.25}), "mrope_section"),
        (changed(vision__out_hidden_size=64), "out_hidden_size"),
        (changed(vision__deepstack_visual_indexes=[1]), "deepstack"),
        (changed(vision__hidden_act="gelu"), "hidden_act"),
        ([], "list"),
    ],
)
def test_what_is_not_covered_is_refused_in_one_sentence(raw, says):
    with pytest.raises(CheckpointError, match=says):
        parse_config(raw, where="config.json")


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "qwen3_5_vl_text"])
def test_text_only_configs_of_the_family(model_type):
    config = parse_config({**TINY["text_config"], "model_type": model_type, "tie_word_embeddings": True})
    assert config.vision is None and config.tie_word_embeddings
    assert config.text == parse_config(TINY).text


def test_layer_kinds_follow_the_interval_where_they_are_not_listed():
    raw = changed(text__full_attention_interval=2)
    del raw["text_config"]["layer_types"]
    assert parse_config(raw).text.full_layers == (1, 3, 5, 7)


def test_files_and_folders_are_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    assert read_config(tmp_path) == read_config(tmp_path / "config.json") == parse_config(TINY)
    with pytest.raises(CheckpointError, match=r"No config\.json"):
        read_config(tmp_path / "nothing")
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match="JSON"):
        read_config(tmp_path)
