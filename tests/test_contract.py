"""The contract, frozen: every name, its order, dtype and axes. Whoever changes it changes every consumer."""

from __future__ import annotations

import pytest

from qwen_export import contract
from qwen_export.checkpoint import load_config
from qwen_export.contract import (
    decoder_contract,
    embedding_contract,
    graph_file,
    logits_dtype,
    states,
    vision_encoder_contract,
)
from qwen_export.model_config import parse_config

CONFIG = parse_config(load_config("qwen3.8-27b"))
TOTAL = "past_sequence_length + sequence_length"
ALIASES = {"fp16": "float16", "fp32": "float32", "bf16": "bfloat16"}


def rows(specs) -> list[tuple]:
    return [(spec.name, spec.dtype, spec.shape) for spec in specs]


def test_versions_and_components():
    assert (contract.OPSET, contract.IR_VERSION) == (24, 11)
    assert contract.COMPONENTS == ("vision_encoder", "embedding", "decoder")
    assert contract.DTYPES == ALIASES
    assert [graph_file(c) for c in (*contract.COMPONENTS, "text")] == [
        "vision_encoder/model.onnx", "embedding/model.onnx", "decoder/model.onnx", "model.onnx",
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", ALIASES.values())
def test_vision_encoder(dtype):
    sides = vision_encoder_contract(CONFIG, dtype)
    assert rows(sides.inputs) == [
        ("pixel_values", "float32", ("num_patches", 1536)),
        ("image_grid_thw", "int64", ("num_media", 3)),
    ]
    assert rows(sides.outputs) == [("image_features", dtype, ("num_features", 5120))]


@pytest.mark.parametrize("dtype", ALIASES.values())
def test_embedding(dtype):
    sides = embedding_contract(CONFIG, dtype)
    assert rows(sides.inputs) == [
        ("input_ids", "int64", ("batch", "sequence_length")),
        ("image_features", dtype, ("num_features", 5120)),
    ]
    assert rows(sides.outputs) == [("inputs_embeds", dtype, ("batch", "sequence_length", 5120))]


def expected_states(side: str, length: str, dtype: str) -> list[tuple]:
    out: list[tuple] = []
    for layer in range(64):
        if layer % 4 == 3:
            shape = ("batch", 4, length, 256)
            out += [(f"{side}.{layer}.{kind}", dtype, shape) for kind in ("key", "value")]
        else:
            out.append((f"{side}.{layer}.conv_state", dtype, ("batch", 10240, 3)))
            out.append((f"{side}.{layer}.recurrent_state", "float32", ("batch", 48, 128, 128)))
    return out


@pytest.mark.parametrize(
    ("dtype", "logits_type"), [("float32", "float32"), ("float16", "float16"), ("bfloat16", "float32")]
)
def test_decoder(dtype, logits_type):
    assert logits_dtype(dtype) == logits_type
    sides = decoder_contract(CONFIG, dtype)
    assert rows(sides.inputs) == [
        ("inputs_embeds", dtype, ("batch", "sequence_length", 5120)),
        ("attention_mask", "int64", ("batch", TOTAL)),
        ("position_ids", "int64", (3, "batch", "sequence_length")),
        *expected_states("past_key_values", "past_sequence_length", dtype),
    ]
    assert rows(sides.outputs) == [
        ("logits", logits_type, ("batch", 1, 248320)),
        *expected_states("present", TOTAL, dtype),
    ]


def test_text_only_takes_ids():
    text, decoder = decoder_contract(CONFIG, "float16", component="text"), decoder_contract(CONFIG, "float16")
    assert rows(text.inputs)[0] == ("input_ids", "int64", ("batch", "sequence_length"))
    assert text.inputs[1:] == decoder.inputs[1:] and text.outputs == decoder.outputs


def test_all_logits():
    sides = decoder_contract(CONFIG, "float16", logits="all")
    assert sides.outputs[0].shape == ("batch", "sequence_length", 248320)


def test_static_cache():
    sides = decoder_contract(CONFIG, "float16", max_length=4096)
    by_name = {spec.name: spec.shape for spec in (*sides.inputs, *sides.outputs)}
    assert by_name["past_key_values.3.key"] == by_name["present.3.value"] == ("batch", 4, 4096, 256)
    assert by_name["attention_mask"] == ("batch", TOTAL)


def test_decode_graph():
    sides = decoder_contract(CONFIG, "float16", max_length=4096, single_step=True)
    assert rows(sides.inputs)[:3] == [
        ("inputs_embeds", "float16", ("batch", 1, 5120)),
        ("attention_mask", "int64", ("batch", 4096)),
        ("position_ids", "int64", (3, "batch", 1)),
    ]


def test_past_and_present_pair_up():
    for state in states(CONFIG.text, "float16"):
        assert state.past.dtype == state.present.dtype
        assert state.present.name == state.past.name.replace("past_key_values", "present")
        assert state.past.name == f"past_key_values.{state.layer}.{state.kind}"


def test_the_manifest_form_holds_everything():
    sides = embedding_contract(CONFIG, "float16")
    assert sides.to_dict() == {
        "inputs": [
            {"name": "input_ids", "dtype": "int64", "shape": ["batch", "sequence_length"]},
            {"name": "image_features", "dtype": "float16", "shape": ["num_features", 5120]},
        ],
        "outputs": [{"name": "inputs_embeds", "dtype": "float16", "shape": ["batch", "sequence_length", 5120]}],
    }
