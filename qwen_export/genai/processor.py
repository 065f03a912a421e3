"""GenAI's processor file: how its own picture processor makes patch rows.

Colours are RGB after decoding and no step may swap them: GenAI's `Normalize` does with its Qwen flags, so it is written
without. `PatchImage` makes the rank-2 rows that the graph takes.
"""

from __future__ import annotations

from typing import Any

from qwen_export.errors import PackageError
from qwen_export.model_config import VisionConfig
from qwen_export.package import Package
from qwen_export.runtime.preprocess import ImagePreprocessor

PROCESSOR_FILE = "genai_processor.json"
BICUBIC = 3


def processor_config(package: Package) -> dict[str, Any]:
    """The content of the processor file, with the checkpoint's pixel limits and normalisation.

    Raises:
        PackageError: the checkpoint's processor does what GenAI's cannot.
    """
    vision = package.config.vision
    assert vision is not None
    images = ImagePreprocessor(package.folder)
    upstream = images.upstream
    _check(upstream, vision, package)
    sizes = {"patch_size": vision.patch_size, "merge_size": vision.spatial_merge_size}
    resize = {
        "interpolation": "CUBIC",
        "smart_resize": 1,
        "min_pixels": images.size["shortest_edge"],
        "max_pixels": images.size["longest_edge"],
        **sizes,
    }
    normalize = {"mean": [float(x) for x in upstream.image_mean], "std": [float(x) for x in upstream.image_std]}
    return {
        "processor": {
            "name": "qwen2_5_image_processor",
            "transforms": [
                _step("decode_image", "DecodeImage", {"color_space": "RGB"}),
                _step("resize", "Resize", resize),
                _step("rescale", "Rescale", {"rescale_factor": float(upstream.rescale_factor)}),
                _step("normalize", "Normalize", normalize),
                _step("patch_image", "PatchImage", {**sizes, "temporal_patch_size": vision.temporal_patch_size}),
            ],
        }
    }


def _step(name: str, kind: str, attributes: dict[str, Any]) -> dict[str, Any]:
    return {"operation": {"name": name, "type": kind, "attrs": attributes}}


def _check(upstream: Any, vision: VisionConfig, package: Package) -> None:
    wanted = {
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "resample": BICUBIC,
        "patch_size": vision.patch_size,
        "merge_size": vision.spatial_merge_size,
        "temporal_patch_size": vision.temporal_patch_size,
    }
    for key, value in wanted.items():
        found = getattr(upstream, key, None)
        if found is not None and found != value:
            raise PackageError(
                f"{package.folder}: the checkpoint's image processor has {key} = {found}; GenAI's files can only be "
                f"written for {value}. Use `qwen-export run`."
            )
