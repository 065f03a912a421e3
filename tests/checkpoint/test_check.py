"""Missing, extra, misspelt and misshapen tensors: the tensor, the file and similar names are in the sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qwen_export.checkpoint import open_snapshot
from qwen_export.contract import COMPONENTS, DECODER, EMBEDDING, TEXT, VISION_ENCODER
from qwen_export.errors import CheckpointError
from tests.checkpoint.checkpoint_workshop import Stored, Workshop

DT_BIAS = "model.language_model.layers.1.linear_attn.dt_bias"


def refusal(folder: Path, components: tuple[str, ...] = COMPONENTS) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_snapshot(folder).check(components)
    return str(caught.value)


def test_a_missing_tensor_and_the_index_are_named(tmp_path: Path, workshop: Workshop) -> None:
    del workshop.tensors[DT_BIAS]
    says = refusal(workshop.write(tmp_path, shards=2))
    assert DT_BIAS in says and str(tmp_path / "model.safetensors.index.json") in says
    assert re.search(r"Similar names there: model\.language_model\.layers\.\d\.linear_attn\.dt_bias,", says)


def test_a_misspelt_tensor_is_found_as_a_similar_name(tmp_path: Path, workshop: Workshop) -> None:
    workshop.tensors[DT_BIAS.replace("dt_bias", "dt_bais")] = workshop.tensors.pop(DT_BIAS)
    says = refusal(workshop.write(tmp_path))
    assert f"{DT_BIAS} is missing" in says and "Similar names there: " + DT_BIAS.replace("bias", "bais") in says


def test_a_left_over_tensor_and_its_file_are_named(tmp_path: Path, workshop: Workshop) -> None:
    extra = DT_BIAS.replace("dt_bias", "dt_bias_2")
    workshop.tensors[extra] = workshop.tensors[DT_BIAS]
    workshop.tensors["model.something"] = workshop.tensors[DT_BIAS]
    says = refusal(workshop.write(tmp_path))
    assert f"Tensor {extra} in {tmp_path / 'model.safetensors'} (and 1 more)" in says
    assert DT_BIAS in says


def test_one_layer_more_than_the_config_has(tmp_path: Path, workshop: Workshop) -> None:
    text = workshop.config["text_config"]
    text["num_hidden_layers"] = 7
    text["layer_types"] = text["layer_types"][:7]
    assert "model.language_model.layers.7." in refusal(workshop.write(tmp_path))


@pytest.mark.parametrize("components", [(DECODER,), (EMBEDDING,), COMPONENTS])
def test_a_wrong_shape_names_both_shapes_and_the_file(
    tmp_path: Path, workshop: Workshop, components: tuple[str, ...]
) -> None:
    workshop.tensors[DT_BIAS].shape = [2, 3]
    says = refusal(workshop.write(tmp_path), components)
    assert DT_BIAS in says and "[2, 3]" in says and "[6]" in says and "model.safetensors" in says


def test_a_dtype_that_is_no_plain_float(tmp_path: Path, workshop: Workshop) -> None:
    workshop.tensors[DT_BIAS] = Stored("F64", [6], bytes(48))
    says = refusal(workshop.write(tmp_path))
    assert DT_BIAS in says and "float64" in says and "bfloat16" in says


@pytest.mark.parametrize(("dtype", "width"), [("F16", 2), ("F32", 4)])
def test_other_plain_floats_are_fine(tmp_path: Path, workshop: Workshop, dtype: str, width: int) -> None:
    workshop.tensors[DT_BIAS] = Stored(dtype, [6], bytes(6 * width))
    snapshot = open_snapshot(workshop.write(tmp_path))
    snapshot.check(COMPONENTS)
    assert snapshot.array(DT_BIAS).dtype.itemsize == width


def test_without_vision_tensors_the_command_that_works_is_named(tmp_path: Path, workshop: Workshop) -> None:
    workshop.tensors = {key: tensor for key, tensor in workshop.tensors.items() if "visual" not in key}
    folder = workshop.write(tmp_path)
    assert "qwen-export text --checkpoint" in refusal(folder)
    open_snapshot(folder).check([TEXT])
    open_snapshot(folder).check([DECODER])


def test_a_text_only_checkpoint_has_no_vision_encoder(tmp_path: Path, workshop: Workshop) -> None:
    workshop.config = workshop.config["text_config"]
    workshop.tensors = {key: tensor for key, tensor in workshop.tensors.items() if "visual" not in key}
    assert "qwen-export text --checkpoint" in refusal(workshop.write(tmp_path), (VISION_ENCODER,))


def test_vision_tensors_under_a_text_only_config(tmp_path: Path, workshop: Workshop) -> None:
    workshop.config = workshop.config["text_config"]
    says = refusal(workshop.write(tmp_path), (TEXT,))
    assert "config.json has no vision_config" in says and "model.visual." in says
