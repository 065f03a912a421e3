"""Pictures to patch rows, through Transformers' own image processor (its Pillow back end, by name).

`AutoProcessor` is not used: its video half needs torchvision. torchvision's resize differs from Pillow's by up to
0.016 on a smooth picture, so one back end serves run, verify and evaluate alike.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qwen_export.errors import InputError, PackageError, UsageError
from qwen_export.runtime.images import ImageSource, describe, open_image

IMAGE, VIDEO = "image", "video"


@dataclass(frozen=True)
class Media:
    """One picture or video, ready for the vision graph."""

    kind: str
    """`image` or `video`."""
    pixel_values: np.ndarray
    """float32 [R, patch width], rows in merge order."""
    grid: tuple[int, int, int]
    """Patches as (t, h, w); R = t*h*w."""
    name: str
    timestamps: tuple[float, ...] = ()
    """Seconds of each of a video's t frame groups."""
    note: str = ""
    """What was sampled from a video, for the user."""

    def num_features(self, merge_unit: int) -> int:
        """Feature rows, which is also placeholder tokens."""
        return self.grid[0] * self.grid[1] * self.grid[2] // merge_unit


@dataclass(frozen=True)
class PixelLimits:
    """Overrides of the checkpoint's pixel limits; None keeps its own. A video's limits count all its frames."""

    min_pixels: int | None = None
    max_pixels: int | None = None

    def apply(self, size: dict[str, Any], factor: int) -> dict[str, Any]:
        """The processor's `size` with these limits, checked."""
        low = size["shortest_edge"] if self.min_pixels is None else self.min_pixels
        high = size["longest_edge"] if self.max_pixels is None else self.max_pixels
        smallest = factor * factor
        if low < 1 or high < smallest:
            raise UsageError(
                f"Impossible pixel limits: --min-pixels {low}, --max-pixels {high}. The smallest picture has "
                f"{smallest} pixels ({factor}x{factor})."
            )
        if low > high:
            raise UsageError(
                f"--min-pixels ({low}) is above --max-pixels ({high}). Limits that are not given are the checkpoint's "
                f"own ({size['shortest_edge']} and {size['longest_edge']}); give both to go outside them."
            )
        return {**size, "shortest_edge": low, "longest_edge": high}


class ImagePreprocessor:
    """Transformers' `Qwen2VLImageProcessorPil`, set up from a package's `preprocessor_config.json`."""

    def __init__(self, folder: Path, limits: PixelLimits | None = None) -> None:
        require_file(folder, "preprocessor_config.json", "processor_config.json")
        processor_class = _image_processor_class()
        self._processor = processor_class.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        self.factor = self._processor.patch_size * self._processor.merge_size
        size = {key: self._processor.size[key] for key in ("shortest_edge", "longest_edge")}
        self.size = (limits or PixelLimits()).apply(size, self.factor)

    @property
    def upstream(self) -> Any:
        """Transformers' processor, with the checkpoint's settings."""
        return self._processor

    def prepare(self, source: ImageSource, name: str | None = None) -> Media:
        """Open one picture and cut it into patch rows."""
        name = name or describe(source)
        image = open_image(source, name)
        try:
            out = self._processor([image], size=self.size, return_tensors="np")
        except ValueError as error:
            raise InputError(f"{name}: the image processor refused the picture ({error}).") from None
        t, h, w = (int(n) for n in out["image_grid_thw"][0])
        return Media(IMAGE, out["pixel_values"].astype(np.float32, copy=False), (t, h, w), name)


def stack_grids(media: Sequence[Media]) -> np.ndarray:
    """int64 [M, 3], also for no media at all."""
    return np.array([item.grid for item in media], dtype=np.int64).reshape(-1, 3)


def require_file(folder: Path, *names: str) -> Path:
    """The first of these files that the folder has."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise PackageError(
        f"{folder} has no {names[0]}, which pictures and prompts need. The checkpoint lacked it at export time: add it "
        "there and export again, or copy it into the package."
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a package."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise PackageError(f"{path} cannot be read as JSON ({error}). Export the package again.") from None
    if not isinstance(data, dict):
        raise PackageError(f"{path} does not hold a JSON object. Export the package again.")
    return data


def _image_processor_class() -> Any:
    # Transformers remarks on import that PyTorch is missing; here that is the normal case.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    except ImportError as error:
        raise UsageError(
            f"This Transformers has no Pillow image processor for Qwen-VL ({error}). Install transformers>=5.17."
        ) from None
    return Qwen2VLImageProcessorPil
