"""Videos to patch rows, in numpy and Pillow: Transformers' video processor needs torchvision, this does not.

Frame sampling, grid and timestamps equal Transformers' `Qwen3VLVideoProcessor` and `Qwen3VLProcessor`; pixels differ
from torchvision's by its resize alone (at most 0.016).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from qwen_export.errors import InputError, UsageError
from qwen_export.runtime.images import ImageSource, check_aspect, describe, open_image
from qwen_export.runtime.preprocess import VIDEO, Media, PixelLimits, read_json, require_file

FRAMES_FOLDER_FPS = 2.0
"""Frames per second of a frames folder when nothing else is said."""

VideoSource = str | Path | Sequence[ImageSource]


@dataclass(frozen=True)
class VideoSettings:
    """What a checkpoint's video processor file says; the defaults are those of Transformers' class."""

    size: dict[str, int]
    patch_size: int = 16
    temporal_patch_size: int = 2
    merge_size: int = 2
    min_frames: int = 4
    max_frames: int = 768
    fps: float = 2
    image_mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    image_std: tuple[float, ...] = (0.5, 0.5, 0.5)
    rescale_factor: float = 1 / 255
    cap_pixels_per_frame: bool = False
    max_video_tokens: int = 768

    @property
    def factor(self) -> int:
        """Both sides of a frame are multiples of this."""
        return self.patch_size * self.merge_size


@dataclass(frozen=True)
class Frames:
    """The sampled frames of one video."""

    images: list[Image.Image]
    indices: list[int]
    """Index of each sampled frame in the whole video."""
    fps: float
    """Frames per second of the whole video."""
    total: int
    name: str


def read_settings(folder: Path, limits: PixelLimits | None = None) -> VideoSettings:
    """Read `processor_config.json` (nested form), else `video_preprocessor_config.json`, else the picture one."""
    path = require_file(folder, "video_preprocessor_config.json", "preprocessor_config.json", "processor_config.json")
    raw = read_json(path)
    nested = folder / "processor_config.json"
    if nested.is_file():
        raw = read_json(nested).get("video_processor", raw)
    default_size = {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768}
    known = {f.name for f in fields(VideoSettings)}
    values = {key: value for key, value in raw.items() if key in known and value is not None}
    settings = VideoSettings(**{**values, "size": {**default_size, **values.get("size", {})}})
    return replace(settings, size=(limits or PixelLimits()).apply(settings.size, settings.factor))


def prepare_video(source: VideoSource, settings: VideoSettings, fps: float | None = None) -> Media:
    """Sample, resize and cut one video into patch rows.

    Args:
        source: a folder of frames (in natural order of their names), a list of pictures, or a video file.
        fps: frames to use per second of a video file (default: the checkpoint's), or the frames per second at which
            a folder or list was taken (default 2; all of its frames are used, up to the checkpoint's maximum).
    """
    if fps is not None and not (math.isfinite(fps) and fps > 0):
        raise UsageError(f"--fps must be a number above 0, not {fps}.")
    frames = _read_frames(source, settings, fps)
    pixel_values, grid = _patch_rows(frames, settings)
    times = timestamps(frames.indices, frames.fps, settings.temporal_patch_size)
    note = f"{frames.name}: {len(frames.indices)} of {frames.total} frames, taken at {frames.fps:g} per second"
    return Media(VIDEO, pixel_values, grid, frames.name, tuple(times), note)


def sample_indices(total: int, source_fps: float, fps: float, settings: VideoSettings) -> list[int]:
    """Which of `total` frames to use for `fps` frames per second, evenly spread from the first to the last."""
    wanted = int(total / source_fps * fps)
    count = min(max(wanted, settings.min_frames), settings.max_frames, total)
    return [int(i) for i in np.linspace(0, total - 1, count).round()]


def timestamps(indices: Sequence[int], fps: float, temporal_patch_size: int) -> list[float]:
    """Seconds of each frame group: the mean of its first and last frame. The last frame fills an uneven group."""
    padded = list(indices) + [indices[-1]] * (-len(indices) % temporal_patch_size)
    seconds = [index / fps for index in padded]
    last = temporal_patch_size - 1
    return [(seconds[i] + seconds[i + last]) / 2 for i in range(0, len(seconds), temporal_patch_size)]


def resized_frame(num_frames: int, height: int, width: int, settings: VideoSettings) -> tuple[int, int]:
    """Height and width of a frame after resizing: multiples of the factor, within the limits over all frames."""
    factor, low, high = settings.factor, settings.size["shortest_edge"], settings.size["longest_edge"]
    if settings.cap_pixels_per_frame:
        cap = settings.max_video_tokens * factor * factor
        high = max(min(cap, high // num_frames), int(low * 1.05)) * num_frames
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    rounded_frames = round(num_frames / settings.temporal_patch_size) * settings.temporal_patch_size
    pixels = rounded_frames * new_height * new_width
    if pixels > high:
        shrink = math.sqrt(num_frames * height * width / high)
        new_height = max(factor, math.floor(height / shrink / factor) * factor)
        new_width = max(factor, math.floor(width / shrink / factor) * factor)
    elif pixels < low:
        grow = math.sqrt(low / (num_frames * height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    return new_height, new_width


def natural_key(path: Path) -> list[Any]:
    """Sorts frame2 before frame10."""
    return [(0, int(part)) if part.isdigit() else (1, part.lower()) for part in re.split(r"(\d+)", path.name) if part]


def _read_frames(source: VideoSource, settings: VideoSettings, fps: float | None) -> Frames:
    if not isinstance(source, str | Path):
        return _open_frames(list(source), "list of frames", settings, fps)
    path = Path(source)
    if path.is_dir():
        known = set(Image.registered_extensions())
        files = [file for file in path.iterdir() if file.suffix.lower() in known and not file.name.startswith(".")]
        return _open_frames(sorted(files, key=natural_key), str(path), settings, fps)
    if not path.is_file():
        raise InputError(f"{path}: there is no such video file or frames folder.")
    return _decode_file(path, settings, fps)


def _open_frames(sources: list[Any], name: str, settings: VideoSettings, fps: float | None) -> Frames:
    if not sources:
        raise InputError(f"{name}: no frames in it (PNG, JPEG and other picture files, named in order).")
    rate = fps or FRAMES_FOLDER_FPS
    indices = sample_indices(len(sources), rate, rate, settings)
    images = [open_image(sources[i], _frame_name(sources[i], i)) for i in indices]
    for index, image in zip(indices, images, strict=True):
        if image.size != images[0].size:
            raise InputError(
                f"{_frame_name(sources[index], index)}: {image.width}x{image.height} pixels, but the first frame has "
                f"{images[0].width}x{images[0].height}. All frames of a video need one size."
            )
    return Frames(images, indices, rate, len(sources), name)


def _frame_name(source: Any, index: int) -> str:
    return f"frame {index}: {describe(source)}"


def _decode_file(path: Path, settings: VideoSettings, fps: float | None) -> Frames:
    try:
        import av
    except ImportError:
        raise UsageError(
            f"Reading the video file {path} needs PyAV: pip install 'qwen-export[video]'. "
            "Without it, give a folder of frames (one picture per frame, named in order)."
        ) from None
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise InputError(f"{path}: the file has no video stream.")
            stream = container.streams.video[0]
            total, rate = stream.frames, float(stream.average_rate or 0)
            if not total:  # some containers do not state it
                total = sum(1 for _ in container.decode(video=0))
                container.seek(0)
            if not total or not rate:
                raise InputError(f"{path}: no frames or no frame rate in the video. Extract its frames to a folder.")
            indices = sample_indices(total, rate, fps or settings.fps, settings)
            images = _pick(container, indices, path)
    except av.FFmpegError as error:
        raise InputError(f"{path}: the video is damaged or of an unknown kind ({error}).") from None
    return Frames(images, indices, rate, total, str(path))


def _pick(container: Any, indices: list[int], path: Path) -> list[Image.Image]:
    chosen: dict[int, Image.Image] = {}
    wanted = set(indices)
    for index, frame in enumerate(container.decode(video=0)):
        if index in wanted:
            chosen[index] = Image.fromarray(frame.to_ndarray(format="rgb24"))
        if len(chosen) == len(wanted):
            break
    if len(chosen) < len(wanted):
        raise InputError(f"{path}: the video ends early; {len(chosen)} of {len(wanted)} sampled frames are readable.")
    return [chosen[index] for index in indices]


def _patch_rows(frames: Frames, settings: VideoSettings) -> tuple[np.ndarray, tuple[int, int, int]]:
    """float32 rows in merge order, and the grid. An uneven last group repeats the last frame."""
    images, temporal = frames.images, settings.temporal_patch_size
    check_aspect(images[0].width, images[0].height, frames.name)
    # One lone frame is repeated before the size is chosen: Transformers refuses fewer frames than a group holds.
    counted = max(len(images), temporal)
    height, width = resized_frame(counted, images[0].height, images[0].width, settings)
    resized = [image.resize((width, height), Image.Resampling.BICUBIC) for image in images]
    resized += [resized[-1]] * (-len(resized) % temporal)
    patch, merge = settings.patch_size, settings.merge_size
    t, h, w = len(resized) // temporal, height // patch, width // patch
    rows = np.empty((t, h * w, 3 * temporal * patch * patch), dtype=np.float32)
    mean, std = np.array(settings.image_mean, np.float32), np.array(settings.image_std, np.float32)
    for step in range(t):
        group = np.stack([np.asarray(image, np.float32) for image in resized[step * temporal : (step + 1) * temporal]])
        group = (group * np.float32(settings.rescale_factor) - mean) / std
        blocks = group.reshape(temporal, h // merge, merge, patch, w // merge, merge, patch, 3)
        rows[step] = blocks.transpose(1, 4, 2, 5, 7, 0, 3, 6).reshape(h * w, -1)
    return rows.reshape(t * h * w, -1), (t, h, w)
