"""Other families and quantised weights are refused at the door, with the method or family named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qwen_export.checkpoint import open_config, open_snapshot
from qwen_export.errors import CheckpointError
from tests.checkpoint.checkpoint_workshop import Stored, Workshop

WEIGHT = "model.language_model.layers.0.mlp.up_proj"


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_snapshot(folder)
    return str(caught.value)


@pytest.mark.parametrize(
    "model_type", ["qwen3_5_moe", "qwen3_5_moe_text", "qwen3_vl", "qwen3_vl_moe", "qwen3_next", None]
)
def test_other_families(tmp_path: Path, workshop: Workshop, model_type: str | None) -> None:
    workshop.config["model_type"] = model_type
    says = refusal(workshop.write(tmp_path))
    assert repr(model_type) in says and "dense qwen3_5" in says and str(tmp_path) in says
    with pytest.raises(CheckpointError, match="dense qwen3_5"):
        open_config(tmp_path)


def test_deepstack_vision_is_another_family(tmp_path: Path, workshop: Workshop) -> None:
    workshop.config["vision_config"]["deepstack_visual_indexes"] = [0, 1]
    assert "DeepStack" in refusal(workshop.write(tmp_path))


@pytest.mark.parametrize("place", [None, "text_config"])
@pytest.mark.parametrize(
    ("key", "settings", "method"),
    [
        ("quantization_config", {"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ("quantization_config", {"quant_method": "gptq"}, "gptq"),
        ("compression_config", {"quant_method": "compressed-tensors"}, "compressed-tensors"),
        ("quantization_config", "awq", "awq"),
    ],
)
def test_quantisation_in_the_config(
    tmp_path: Path, workshop: Workshop, place: str | None, key: str, settings: Any, method: str
) -> None:
    (workshop.config[place] if place else workshop.config)[key] = settings
    says = refusal(workshop.write(tmp_path))
    assert method in says and "config.json" in says and "pre-quantised" in says


def test_quantisation_in_the_file_of_modelopt(tmp_path: Path, workshop: Workshop) -> None:
    folder = workshop.write(tmp_path)
    content = {"quantization": {"quant_algo": "NVFP4"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(content), encoding="utf-8")
    assert "NVFP4" in refusal(folder)


@pytest.mark.parametrize(
    ("suffix", "method"),
    [
        (".weight_scale_inv", "FP8"),
        (".weight_scale", "compressed-tensors"),
        (".qweight", "GPTQ or AWQ"),
        (".weight.absmax", "bitsandbytes"),
        (".SCB", "bitsandbytes"),
    ],
)
def test_scales_beside_the_weights(tmp_path: Path, workshop: Workshop, suffix: str, method: str) -> None:
    workshop.tensors[WEIGHT + suffix] = Stored("F32", [1], bytes(4))
    says = refusal(workshop.write(tmp_path))
    assert method in says and WEIGHT + suffix in says and "model.safetensors" in says


@pytest.mark.parametrize(("dtype", "method"), [("F8_E4M3", "FP8"), ("I8", "int8"), ("U8", "packed")])
def test_quantised_dtypes(tmp_path: Path, workshop: Workshop, dtype: str, method: str) -> None:
    tensor = workshop.tensors[WEIGHT + ".weight"]
    tensor.dtype, tensor.data = dtype, tensor.data[::2]
    says = refusal(workshop.write(tmp_path))
    assert method in says and WEIGHT in says and "model.safetensors" in says


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "\ufeff{}", '{"model_type": "qwen3_5", "text_config": {"layer_types": ["x"]}}']
)
def test_a_damaged_config(tmp_path: Path, workshop: Workshop, text: str) -> None:
    folder = workshop.write(tmp_path)
    (folder / "config.json").write_text(text, encoding="utf-8")
    assert "config.json" in refusal(folder)


def test_a_folder_without_config(tmp_path: Path, workshop: Workshop) -> None:
    folder = workshop.write(tmp_path)
    (folder / "config.json").unlink()
    assert "No config.json" in refusal(folder)
