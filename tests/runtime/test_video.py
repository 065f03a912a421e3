"""Sampling, grid, timestamps and patch order equal Transformers' video processor.

The judge is Transformers' own code: torchvision does not install beside the pinned torch, so its methods are called on
a plain object (they use nothing of torchvision but the resize). The resize is judged by the operation torchvision
performs, `torch.nn.functional.interpolate(mode="bicubic", antialias=True)` rounded to 8 bits.
"""

from __future__ import annotations

import importlib
import json
import logging
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.qwen3_vl import processing_qwen3_vl
from transformers.video_utils import VideoMetadata, read_video_pyav

from qwen_export.errors import InputError, UsageError
from qwen_export.runtime.preprocess import PixelLimits
from qwen_export.runtime.video import (
    VideoSettings,
    natural_key,
    prepare_video,
    read_settings,
    resized_frame,
    sample_indices,
    timestamps,
)
from tests.runtime.odd_pictures import marker

video_processing_qwen3_vl = importlib.import_module("transformers.models.qwen3_vl.video_processing_qwen3_vl")
"""The module itself: Transformers' lazy import replaces it by an error where torchvision is missing."""

SIZE = {"shortest_edge": 4096, "longest_edge": 25165824}
SMALL = VideoSettings(size={"shortest_edge": 4096, "longest_edge": 65536})


def upstream_class():
    return video_processing_qwen3_vl.Qwen3VLVideoProcessor


def upstream(method: str):
    """A method of Transformers' class without the torchvision requirement of its constructor."""
    return vars(upstream_class())[method]


def moving_frames(count: int, width: int = 160, height: int = 128) -> list[Image.Image]:
    frames = []
    for i in range(count):
        frame = marker(width, height)
        frame.paste((255, 255, 0), (10 + 9 * i, 40, 30 + 9 * i, 60))
        frames.append(frame)
    return frames


def reference_rows(frames: list[Image.Image], settings: VideoSettings) -> tuple[np.ndarray, tuple[int, int, int]]:
    video = torch.from_numpy(np.stack([np.asarray(frame) for frame in frames])).permute(0, 3, 1, 2)
    limits = settings.size["shortest_edge"], settings.size["longest_edge"]
    height, width = video_processing_qwen3_vl.smart_resize(len(frames), *video.shape[2:], 2, 32, *limits)
    resized = torch.nn.functional.interpolate(video.float(), (height, width), mode="bicubic", antialias=True)
    resized = resized.clamp(0, 255).round()
    mean, std = torch.tensor([0.5] * 3) * 255, torch.tensor([0.5] * 3) * 255
    normal = (resized - mean[:, None, None]) / std[:, None, None]
    rows, t, h, w = upstream("patchify")(None, normal[None], 16, 2, 2)
    return rows[0].numpy(), (t, h, w)


def test_sampling_equals_transformers():
    rng = random.Random(0)
    judge = SimpleNamespace(fps=2, min_frames=4, max_frames=768)
    for _ in range(400):
        total, source = rng.randint(1, 3000), rng.choice([1, 2, 23.976, 24, 29.97, 60])
        wanted = rng.choice([0.5, 1, 2, 5])
        expected = upstream("sample_frames")(judge, VideoMetadata(total_num_frames=total, fps=source), fps=wanted)
        assert sample_indices(total, source, wanted, SMALL) == expected.tolist()


def test_timestamps_equal_transformers():
    rng = random.Random(1)
    for _ in range(200):
        indices = sorted(rng.sample(range(500), rng.randint(1, 60)))
        fps = rng.choice([1.0, 2.0, 23.976, 29.97])
        expected = processing_qwen3_vl.Qwen3VLProcessor._calculate_timestamps(None, list(indices), fps, 2)
        assert timestamps(indices, fps, 2) == expected


def test_frame_size_equals_transformers():
    rng = random.Random(2)
    for _ in range(500):
        count, height, width = rng.randint(2, 200), rng.randint(8, 2000), rng.randint(8, 2000)
        settings = VideoSettings(size={"shortest_edge": 4096, "longest_edge": rng.choice([65536, 786432, 25165824])})
        args = (settings.size["shortest_edge"], settings.size["longest_edge"])
        expected = video_processing_qwen3_vl.smart_resize(count, height, width, 2, 32, *args)
        assert resized_frame(count, height, width, settings) == expected


def test_defaults_equal_transformers():
    judge, ours = upstream_class(), VideoSettings(size={})
    names = ("patch_size", "temporal_patch_size", "merge_size", "min_frames", "max_frames", "fps", "max_video_tokens")
    for name in names:
        assert getattr(ours, name) == vars(judge)[name], name
    assert list(ours.image_mean) == list(vars(judge)["image_mean"])
    assert not vars(judge)["cap_pixels_per_frame"]


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_rows_without_resize_are_exact(count):
    frames = moving_frames(count)
    media = prepare_video(frames, VideoSettings(size=SIZE))
    expected, grid = reference_rows(frames, VideoSettings(size=SIZE))
    assert media.grid == grid == ((count + 1) // 2, 8, 10)
    assert np.abs(media.pixel_values - expected).max() <= 1e-6


@pytest.mark.parametrize("width, height", [(150, 110), (640, 361), (97, 203)])
def test_rows_with_resize_are_within_two_grey_levels(width, height):
    ramp = np.add.outer(np.linspace(0, 120, height), np.linspace(0, 135, width))
    smooth = Image.fromarray(np.stack([ramp, ramp[::-1], ramp.mean() + 0 * ramp], -1).astype(np.uint8))
    frames = [smooth, smooth.transpose(Image.Transpose.FLIP_LEFT_RIGHT), smooth, smooth]
    media = prepare_video(frames, SMALL)
    expected, grid = reference_rows(frames, SMALL)
    assert media.grid == grid
    assert np.abs(media.pixel_values - expected).max() <= 0.016


def test_a_single_frame_is_repeated():
    media = prepare_video(moving_frames(1), VideoSettings(size=SIZE))
    assert media.grid == (1, 8, 10)
    assert media.timestamps == (0.0,)
    doubled = prepare_video(moving_frames(1) * 2, VideoSettings(size=SIZE))
    assert np.array_equal(media.pixel_values, doubled.pixel_values)


def test_folder_is_read_in_natural_order(tmp_path):
    for i, frame in enumerate(moving_frames(12)):
        frame.save(tmp_path / f"frame{i}.png")
    (tmp_path / "notes.txt").write_text("not a frame", encoding="utf-8")
    media = prepare_video(tmp_path, VideoSettings(size=SIZE))
    assert np.array_equal(media.pixel_values, prepare_video(moving_frames(12), VideoSettings(size=SIZE)).pixel_values)
    assert media.grid[0] == 6
    assert media.timestamps == (0.25, 1.25, 2.25, 3.25, 4.25, 5.25)
    assert "12 of 12 frames, taken at 2 per second" in media.note
    assert sorted([Path("f10.png"), Path("f9.png")], key=natural_key)[0].name == "f9.png"


def test_bad_videos_are_refused(tmp_path):
    settings = VideoSettings(size=SIZE)
    with pytest.raises(InputError, match="no such video"):
        prepare_video(tmp_path / "missing.mp4", settings)
    with pytest.raises(InputError, match="no frames"):
        prepare_video(tmp_path, settings)
    marker(64, 64).save(tmp_path / "1.png")
    marker(64, 32).save(tmp_path / "2.png")
    with pytest.raises(InputError, match=r"2\.png: 64x32 pixels, but the first frame has 64x64"):
        prepare_video(tmp_path, settings)
    (tmp_path / "bad.mp4").write_bytes(b"nothing here")
    with pytest.raises(InputError, match=r"bad\.mp4"):
        prepare_video(tmp_path / "bad.mp4", settings)
    with pytest.raises(UsageError, match="above 0"):
        prepare_video(moving_frames(2), settings, fps=0)
    with pytest.raises(InputError, match="ratio of 200"):
        prepare_video([Image.new("RGB", (402, 2))] * 2, settings)


def test_video_file_equals_transformers_reader(tmp_path):
    av = pytest.importorskip("av")
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 160, 128, "yuv420p"
        for frame in moving_frames(25):
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode())
    judge = SimpleNamespace(fps=2, min_frames=4, max_frames=768)
    video, metadata = read_video_pyav(str(path), lambda metadata: upstream("sample_frames")(judge, metadata, fps=4))
    media = prepare_video(path, VideoSettings(size=SIZE), fps=4)
    expected, grid = reference_rows([Image.fromarray(frame) for frame in video], VideoSettings(size=SIZE))
    assert media.grid == grid
    assert np.abs(media.pixel_values - expected).max() <= 1e-6
    judge_times = processing_qwen3_vl.Qwen3VLProcessor._calculate_timestamps(
        None, metadata.frames_indices.tolist(), metadata.fps, 2
    )
    assert list(media.timestamps) == judge_times


def test_video_file_without_pyav_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "clip.mp4").write_bytes(b"x")
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(UsageError, match=r"qwen-export\[video\]"):
        prepare_video(tmp_path / "clip.mp4", VideoSettings(size=SIZE))


def test_settings_come_from_the_nested_file_first(tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": {"longest_edge": 1}}), encoding="utf-8")
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps({"size": SIZE, "fps": 3}), encoding="utf-8")
    assert read_settings(tmp_path) == VideoSettings(size=SIZE, fps=3)
    (tmp_path / "processor_config.json").write_text(json.dumps({"video_processor": {"size": SIZE}}), encoding="utf-8")
    assert read_settings(tmp_path) == VideoSettings(size=SIZE)
    assert read_settings(tmp_path, PixelLimits(max_pixels=65536)).size["longest_edge"] == 65536
