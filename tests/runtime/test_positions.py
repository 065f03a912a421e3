"""Positions equal Transformers' get_rope_index, judged by Transformers itself on seeded random layouts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5Model

from qwen_export.errors import InputError
from qwen_export.model_config import parse_config
from qwen_export.runtime.positions import rope_positions, text_positions

IMAGE, VIDEO, START, END, TEXT = 250, 251, 252, 253, 7
RAW = {
    "model_type": "qwen3_5",
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "text_config": {
        "hidden_size": 64,
        "head_dim": 64,
        "num_hidden_layers": 4,
        "rope_parameters": {"mrope_section": [4, 3, 1]},
    },
    "vision_config": {"out_hidden_size": 64},
}
CONFIG = parse_config(RAW)


def upstream(ids, images, videos, mask):
    """(positions, deltas) of Transformers."""
    judge = SimpleNamespace(config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2)))
    judge.get_vision_position_ids = lambda *args, **kwargs: Qwen3_5Model.get_vision_position_ids(judge, *args, **kwargs)
    types = np.where(ids == IMAGE, 1, np.where(ids == VIDEO, 2, 0))
    positions, deltas = Qwen3_5Model.get_rope_index(
        judge,
        torch.from_numpy(ids),
        torch.from_numpy(types),
        torch.tensor(images) if images else None,
        torch.tensor(videos) if videos else None,
        None if mask is None else torch.from_numpy(mask),
    )
    return positions.numpy(), deltas.numpy()[:, 0]


def image_tokens(grid):
    return [START, *[IMAGE] * (grid[1] * grid[2] // 4), END]


def video_tokens(grid, rng):
    out = [START]
    for _ in range(grid[0]):
        out += [TEXT] * int(rng.integers(1, 8)) + [START, *[VIDEO] * (grid[1] * grid[2] // 4), END]
    return [*out, END]


def random_row(rng, images, videos):
    row = [TEXT] * int(rng.integers(1, 6))
    for _ in range(int(rng.integers(0, 4))):
        h, w = (int(n) * 2 for n in rng.integers(1, 7, size=2))
        if rng.random() < 0.5:
            images.append([1, h, w])
            row += image_tokens(images[-1])
        else:
            videos.append([int(rng.integers(1, 4)), h, w])
            row += video_tokens(videos[-1], rng)
        row += [TEXT] * int(rng.integers(0, 5))
    return row


@pytest.mark.parametrize("seed", range(40))
def test_random_batches_with_left_padding(seed):
    rng = np.random.default_rng(seed)
    images, videos = [], []
    rows = [random_row(rng, images, videos) for _ in range(int(rng.integers(1, 5)))]
    longest = max(map(len, rows)) + int(rng.integers(0, 3))
    ids = np.array([[0] * (longest - len(row)) + row for row in rows])
    mask = np.array([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    expected, deltas = upstream(ids, images, videos, mask)
    grids = {"image_grids": np.array(images).reshape(-1, 3), "video_grids": np.array(videos).reshape(-1, 3)}
    positions, following = rope_positions(ids, CONFIG, mask=mask, **grids)
    assert np.array_equal(positions, expected)
    assert np.array_equal(following, deltas + [len(row) for row in rows])


@pytest.mark.parametrize("seed", range(10))
def test_second_turn_equals_the_whole_conversation(seed):
    rng = np.random.default_rng(100 + seed)
    images, videos = [], []
    first = random_row(rng, images, videos)
    seen = len(images), len(videos)
    second = random_row(rng, images, videos)
    whole, _ = upstream(np.array([first + second]), images, videos, None)
    start = np.zeros(1, np.int64)
    parts = []
    for row, image_part, video_part in (
        (first, images[: seen[0]], videos[: seen[1]]),
        (second, images[seen[0] :], videos[seen[1] :]),
    ):
        grids = {"image_grids": np.array(image_part).reshape(-1, 3), "video_grids": np.array(video_part).reshape(-1, 3)}
        positions, start = rope_positions(np.array([row]), CONFIG, start=start, **grids)
        parts.append(positions)
    assert np.array_equal(np.concatenate(parts, axis=2), whole)


def test_decode_after_a_picture_continues_from_the_largest_position():
    ids = np.array([[TEXT, START, *[IMAGE] * 4, END, TEXT, TEXT]])
    positions, following = rope_positions(ids, CONFIG, image_grids=np.array([[1, 4, 4]]))
    assert positions[:, 0].tolist() == [
        [0, 1, 2, 2, 2, 2, 4, 5, 6],
        [0, 1, 2, 2, 3, 3, 4, 5, 6],
        [0, 1, 2, 3, 2, 3, 4, 5, 6],
    ]
    assert following.tolist() == [7]
    assert text_positions(following, 2)[:, 0].tolist() == [[7, 8]] * 3
    padded = np.array([[0, 0, *ids[0]]])
    mask = np.array([[0, 0] + [1] * 9])
    shifted, following = rope_positions(padded, CONFIG, image_grids=np.array([[1, 4, 4]]), mask=mask)
    assert following.tolist() == [7]
    assert np.array_equal(shifted[:, :, 2:], positions)


def test_video_frame_groups_are_blocks_of_their_own():
    ids = np.array([[TEXT, START, *[VIDEO] * 4, END, TEXT, START, *[VIDEO] * 4, END, TEXT]])
    positions, following = rope_positions(ids, CONFIG, video_grids=np.array([[2, 4, 4]]))
    assert positions[0, 0].tolist() == [0, 1, 2, 2, 2, 2, 4, 5, 6, 7, 7, 7, 7, 9, 10]
    assert positions[1, 0].tolist() == [0, 1, 2, 2, 3, 3, 4, 5, 6, 7, 7, 8, 8, 9, 10]
    assert positions[2, 0].tolist() == [0, 1, 2, 3, 2, 3, 4, 5, 6, 7, 8, 7, 8, 9, 10]
    assert following.tolist() == [11]


def test_disagreeing_counts_are_refused():
    one = np.array([[1, 4, 4]])
    with pytest.raises(InputError, match="do not agree"):
        rope_positions(np.array([[TEXT, IMAGE, IMAGE, TEXT]]), CONFIG, image_grids=one)
    with pytest.raises(InputError, match="no more"):
        rope_positions(np.array([[TEXT, *[IMAGE] * 4]]), CONFIG)
    with pytest.raises(InputError, match="More images"):
        rope_positions(np.array([[TEXT]]), CONFIG, image_grids=one)
