"""Pictures reach GenAI with Transformers' pixels and grids: as named tensors, and as PNG for GenAI's own processor."""

from __future__ import annotations

import io

import numpy as np
import onnxruntime_genai as og
import pytest
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from qwen_export.errors import InputError, UsageError
from qwen_export.genai.native import native_inputs
from qwen_export.runtime.genai import Feeder, new_tokens
from qwen_export.runtime.images import open_image
from qwen_export.runtime.preprocess import PixelLimits
from tests.genai.questions import conversation
from tests.runtime.odd_pictures import make_broken_pictures, make_odd_pictures, marker

SIZES = [(130 + i, 150 + (i * 7) % 200) for i in range(200)]
"""Widths and heights of every residue of 32; where it is 16 and the multiple even, GenAI rounds the other way."""


@pytest.fixture(scope="module")
def transformers_processor(tiny_checkpoint):
    return Qwen2VLImageProcessorPil.from_pretrained(str(tiny_checkpoint), local_files_only=True)


def fed(feeder, source) -> dict[str, np.ndarray]:
    return feeder.arrays(feeder.prompt(conversation("what is it?", [source])))


def as_png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def test_the_sizes_hold_every_residue():
    assert {width % 32 for width, _ in SIZES} == {height % 32 for _, height in SIZES} == set(range(32))


def test_grids_of_200_sizes(feeder, model, transformers_processor):
    native_wrong = 0
    for number, (width, height) in enumerate(SIZES):
        image = Image.effect_noise((width, height), 60).convert("RGB")
        wanted = transformers_processor([image], return_tensors="np")["image_grid_thw"].tolist()
        assert fed(feeder, image)["image_grid_thw"].tolist() == wanted, f"{width}x{height}, named tensors"
        png = feeder.image_png(image)
        assert native_inputs(model, [png])["image_grid_thw"].tolist() == wanted, f"{width}x{height}, PNG"
        if number % 4 == 0 or width % 32 == 16 or height % 32 == 16:
            native_wrong += native_inputs(model, [as_png(image)])["image_grid_thw"].tolist() != wanted
    assert native_wrong, "GenAI now rounds as Transformers does: docs/genai.md can say so"


def test_a_uniform_asymmetric_colour_is_exact(feeder, model, transformers_processor):
    image = Image.new("RGB", (256, 192), (250, 100, 10))
    wanted = transformers_processor([image], return_tensors="np")["pixel_values"]
    assert len(np.unique(wanted)) == 3
    native = native_inputs(model, [as_png(image)])["pixel_values"].reshape(wanted.shape)
    for name, found in (("helper", fed(feeder, image)["pixel_values"]), ("native", native)):
        assert np.abs(found - wanted).max() <= 1e-6, name


def test_the_png_gives_the_same_pixels(feeder, model, transformers_processor):
    for width, height in [(400, 300), (250, 100), (97, 331), (700, 650), (16, 900), (33, 33), (1, 150)]:
        image = marker(width, height)
        wanted = transformers_processor([image], return_tensors="np")["pixel_values"]
        made = native_inputs(model, [feeder.image_png(image)])["pixel_values"].reshape(wanted.shape)
        assert np.abs(made - wanted).max() <= 1e-6, (width, height)


def test_several_pictures_in_one_native_call(feeder, model, transformers_processor):
    images = [marker(200, 120), marker(96, 260), marker(200, 120)]
    wanted = transformers_processor(images, return_tensors="np")
    made = native_inputs(model, [feeder.image_png(image) for image in images])
    assert made["image_grid_thw"].tolist() == wanted["image_grid_thw"].tolist()
    assert made["pixel_values"].shape == wanted["pixel_values"].shape
    assert np.abs(made["pixel_values"] - wanted["pixel_values"]).max() <= 1e-6


@pytest.mark.filterwarnings("ignore:.*only the first is used")
def test_odd_files_are_opened_as_by_run(feeder, model, transformers_processor, tmp_path):
    """EXIF turned, transparency on white, CMYK, palettes, 16 bits, and the formats that end GenAI's process."""
    base = marker(320, 256)
    transparent = base.convert("RGBA")
    transparent.putalpha(Image.linear_gradient("L").resize(base.size))
    transparent.save(tmp_path / "transparent.png")
    for name in ("x.bmp", "x.webp", "x.gif"):
        base.save(tmp_path / name, lossless=True)
    files = [path for path in make_odd_pictures(tmp_path) if not path.name.startswith("size_8000")]
    assert len(files) > 30
    for path in files:
        if min(open_image(path).size) < 20:
            continue
        wanted = transformers_processor([open_image(path)], return_tensors="np")
        arrays = fed(feeder, path)
        assert np.array_equal(arrays["pixel_values"], wanted["pixel_values"]), path.name
        made = native_inputs(model, [feeder.image_png(path)])
        assert made["image_grid_thw"].tolist() == wanted["image_grid_thw"].tolist(), path.name
        difference = np.abs(made["pixel_values"].reshape(wanted["pixel_values"].shape) - wanted["pixel_values"])
        assert difference.max() <= 1e-6, path.name


def test_broken_files_are_refused_by_name(feeder, tmp_path):
    for name, path in make_broken_pictures(tmp_path).items():
        for way in (feeder.image_png, feeder.open_image):
            with pytest.raises(InputError, match=name):
                way(path)


def test_pixel_limits_reach_both_ways(genai_package, model):
    feeder = Feeder(genai_package, limits=PixelLimits(max_pixels=32 * 32 * 60))
    arrays = fed(feeder, marker(400, 300))
    assert np.prod(arrays["image_grid_thw"]) * 256 <= 32 * 32 * 60
    made = native_inputs(model, [feeder.image_png(marker(400, 300))])
    assert made["image_grid_thw"].tolist() == arrays["image_grid_thw"].tolist()


def test_a_png_that_genai_would_resize_again_is_refused(genai_package):
    feeder = Feeder(genai_package, limits=PixelLimits(min_pixels=32 * 32, max_pixels=32 * 32 * 4))
    assert fed(feeder, marker(400, 300))["image_grid_thw"].prod() * 256 <= 32 * 32 * 4
    with pytest.raises(UsageError, match="would resize it again"):
        feeder.image_png(marker(400, 300))


def test_arrays_are_of_the_types_genai_reads(feeder):
    arrays = feeder.arrays(feeder.prompt(conversation("what is it?", [marker(100, 80), marker(90, 120)])))
    assert {name: array.dtype for name, array in arrays.items()} == {
        "input_ids": np.dtype(np.int32),
        "pixel_values": np.dtype(np.float32),
        "image_grid_thw": np.dtype(np.int64),
        "num_image_tokens": np.dtype(np.int64),
    }
    assert all(isinstance(og.Tensor(array), og.Tensor) for array in arrays.values())
    pads = int((arrays["input_ids"] == feeder.package.config.image_token_id).sum())
    assert pads == arrays["num_image_tokens"][0] == arrays["pixel_values"].shape[0] // 4


def test_genais_own_processor_answers_the_same_from_pngs(feeder, model):
    """The whole native way: GenAI's tokenizer expands the placeholders, its processor cuts the helper's PNGs."""
    images = [marker(400, 300), marker(90, 210)]
    prompt = feeder.prompt(conversation("what is it?", images))
    parts = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "what is it?"}]
    text = feeder.tokenizer.apply_chat_template(
        [{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True
    )
    pngs = og.Images.open_bytes(*(feeder.image_png(image) for image in images))
    inputs = model.create_multimodal_processor()(text, images=pngs)
    assert inputs["input_ids"].as_numpy().reshape(-1).tolist() == prompt.input_ids.tolist()
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(do_sample=False, max_length=len(prompt.input_ids) + 24)
    native = og.Generator(model, parameters)
    native.set_inputs(inputs)
    assert list(new_tokens(native)) == list(
        new_tokens(feeder.generator(model, prompt, max_new_tokens=24, do_sample=False))
    )
