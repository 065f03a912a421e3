"""Grids and pixels equal Transformers' Pillow back end, on odd pictures and at every limit."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from transformers.image_utils import load_image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from qwen_export.errors import PackageError, UsageError
from qwen_export.runtime.preprocess import ImagePreprocessor, PixelLimits
from tests.runtime.odd_pictures import LARGE_SIZES, marker

OFFICIAL = {
    "size": {"longest_edge": 16777216, "shortest_edge": 65536},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "processor_class": "Qwen3VLProcessor",
    "image_processor_type": "Qwen2VLImageProcessorFast",
}
GRIDS = {  # measured with Transformers 5.24 on the official limits
    "base.png": (1, 16, 20), "cmyk.jpg": (1, 16, 20), "exif_1.jpg": (1, 16, 20), "exif_5.jpg": (1, 20, 16),
    "exif_8.jpg": (1, 20, 16), "anim.gif": (1, 16, 16), "size_1x1.png": (1, 16, 16), "size_200x1.png": (1, 2, 228),
    "size_1x200.png": (1, 228, 2), "size_500x3.png": (1, 2, 208), "size_3x500.png": (1, 208, 2),
    "size_31x639.png": (1, 74, 4), "size_8000x41.png": (1, 2, 500), "size_400x336.png": (1, 20, 24),
    "size_48x48.png": (1, 16, 16), "size_1360x240.png": (1, 16, 84), "size_640x480.png": (1, 30, 40),
}  # fmt: skip
MEANS = {"base.png": 0.0755, "grey.png": 0.105, "bilevel.png": 0.105, "lab.tif": 0.090, "anim.gif": -0.3333,
         "palette_trns_index.png": 0.2244}  # fmt: skip


@pytest.fixture(scope="module")
def official(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("official")
    (folder / "preprocessor_config.json").write_text(json.dumps(OFFICIAL), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def ours(official) -> ImagePreprocessor:
    return ImagePreprocessor(official)


@pytest.fixture(scope="module")
def reference(official) -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil.from_pretrained(str(official), local_files_only=True)


def test_odd_pictures_equal_transformers(odd_pictures, ours, reference):
    assert len(odd_pictures) >= 38
    for path in odd_pictures:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            media = ours.prepare(path)
            upright = load_image(str(path))
            expected = reference([upright], return_tensors="np")
        assert media.grid == tuple(expected["image_grid_thw"][0]), path.name
        assert media.grid == GRIDS.get(path.name, media.grid), path.name
        assert media.pixel_values.dtype == np.float32
        assert np.abs(media.pixel_values - expected["pixel_values"]).max() <= 1e-6, path.name
        if path.name in MEANS:
            assert abs(float(media.pixel_values.mean()) - MEANS[path.name]) < 6e-4, path.name


@pytest.mark.parametrize("size", LARGE_SIZES)
def test_large_pictures(size, ours, reference):
    image = marker(*size)
    media = ours.prepare(image)
    assert media.grid == {(4096, 4096): (1, 256, 256), (6000, 4000): (1, 208, 312)}[size]
    expected = reference([image], return_tensors="np")["pixel_values"]
    assert np.array_equal(media.pixel_values, expected)


def test_a_picture_is_the_same_in_any_company(ours):
    first, second = marker(320, 256), marker(96, 64)
    alone = ours.prepare(second)
    ours.prepare(first)
    again = ours.prepare(second)
    assert alone.grid == again.grid
    assert np.array_equal(alone.pixel_values, again.pixel_values)


def test_limits_under_both_spellings(tmp_path):
    config = {key: value for key, value in OFFICIAL.items() if key != "size"} | {"min_pixels": 1024, "max_pixels": 4096}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config), encoding="utf-8")
    by_file = ImagePreprocessor(tmp_path).prepare(marker(320, 256))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(OFFICIAL), encoding="utf-8")
    by_flag = ImagePreprocessor(tmp_path, PixelLimits(1024, 4096)).prepare(marker(320, 256))
    assert by_file.grid == by_flag.grid == (1, 2, 4)
    assert np.array_equal(by_file.pixel_values, by_flag.pixel_values)


@pytest.mark.parametrize("low, high", [(None, 1000), (None, 65535), (20_000_000, None), (0, None), (2048, 1024)])
def test_impossible_limits_are_refused(official, low, high):
    with pytest.raises(UsageError, match="pixels"):
        ImagePreprocessor(official, PixelLimits(low, high))


def test_missing_processor_file_names_it(tmp_path):
    with pytest.raises(PackageError, match=r"preprocessor_config\.json"):
        ImagePreprocessor(tmp_path)
