"""The configs of this project: found by name, read by Transformers, and made to catch mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwen_export.checkpoint import config_names, load_config, open_config
from qwen_export.errors import CheckpointError


def test_names() -> None:
    assert set(config_names()) >= {"tiny", "mid", "qwen3.8-27b"}


@pytest.mark.parametrize("name", config_names())
def test_transformers_reads_the_same_facts(name: str) -> None:
    from transformers import AutoConfig

    theirs = AutoConfig.for_model(**load_config(name))
    ours = open_config(name)
    assert type(theirs).__name__ == "Qwen3_5Config"
    text, rope = theirs.text_config, theirs.text_config.rope_parameters
    assert tuple(text.layer_types) == ours.text.layer_types
    assert (rope["rope_theta"], rope["partial_rotary_factor"]) == (
        ours.text.rope_theta,
        ours.text.partial_rotary_factor,
    )
    assert tuple(rope["mrope_section"]) == ours.text.mrope_section
    assert theirs.vision_config.rope_parameters["rope_type"] == "axial"
    assert (text.head_dim, text.vocab_size, text.mtp_num_hidden_layers) == (ours.text.head_dim, ours.text.vocab_size, 1)
    assert (theirs.image_token_id, theirs.video_token_id) == (ours.image_token_id, ours.video_token_id)


def test_tiny_has_every_branch_of_the_large_model_and_no_size_that_hides_a_mistake() -> None:
    config = open_config("tiny")
    text, vision = config.text, config.vision
    assert vision is not None
    assert text.full_layers == (3, 7) and len(text.linear_layers) == 6
    assert len(set(text.mrope_section)) == 3 and min(text.mrope_section) > 0
    assert text.rotary_dim < text.head_dim
    assert text.linear_num_key_heads > 1 and text.linear_num_value_heads > text.linear_num_key_heads
    assert text.num_key_value_heads > 1 and text.num_attention_heads > text.num_key_value_heads
    assert text.linear_key_head_dim != text.linear_value_head_dim
    assert vision.depth >= 2 and vision.hidden_size != text.hidden_size
    assert vision.grid_side**2 == vision.num_position_embeddings and vision.grid_side % 2
    assert not config.tie_word_embeddings


def test_the_27b_facts() -> None:
    config = open_config("qwen3.8-27b")
    text, vision = config.text, config.vision
    assert vision is not None
    assert (text.hidden_size, text.intermediate_size, text.num_hidden_layers, len(text.full_layers)) == (
        5120,
        17408,
        64,
        16,
    )
    assert (text.num_attention_heads, text.num_key_value_heads, text.head_dim, text.rotary_dim) == (24, 4, 256, 64)
    assert (text.mrope_section, text.rope_theta, text.vocab_size) == ((11, 11, 10), 1e7, 248320)
    assert (text.linear_num_key_heads, text.linear_num_value_heads, text.conv_dim) == (16, 48, 10240)
    assert (text.max_position_embeddings, config.tie_word_embeddings) == (262144, False)
    assert (vision.depth, vision.hidden_size, vision.num_heads, vision.intermediate_size) == (27, 1152, 16, 4304)
    assert (vision.num_position_embeddings, vision.out_hidden_size, vision.patch_width) == (2304, 5120, 1536)
    assert (config.image_token_id, config.video_token_id) == (248056, 248057)
    assert (config.vision_start_token_id, config.vision_end_token_id) == (248053, 248054)


def test_a_config_is_a_file_a_folder_or_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = load_config("tiny")
    raw["text_config"]["vocab_size"] = 600
    (tmp_path / "mine.json").write_text(json.dumps(raw), encoding="utf-8")
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert open_config(tmp_path / "mine.json").text.vocab_size == 600
    # A folder without a config does not hide ours of the same name; one with a config does.
    assert open_config("tiny").text.vocab_size == 512
    (tmp_path / "mine.json").rename(tmp_path / "tiny" / "config.json")
    assert open_config("tiny").text.vocab_size == 600
    assert load_config(tmp_path / "tiny") == raw


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(CheckpointError, match=r"mid, qwen3\.8-27b, tiny"):
        open_config("no such name")
    with pytest.raises(CheckpointError, match=r"No config\.json"):
        open_config(Path(__file__).parent)
