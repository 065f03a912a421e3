"""Pictures and videos for tests of the vision encoder: grids in every mix of sizes, and their patch rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Grids = Sequence[Sequence[int]]

GRIDS: dict[str, Grids] = {
    "one picture": [[1, 4, 6]],
    "two unequal pictures": [[1, 2, 2], [1, 6, 4]],
    "a video": [[3, 4, 4]],
    "picture, video, picture": [[1, 4, 6], [3, 2, 8], [1, 2, 2]],
    "videos and pictures": [[2, 2, 2], [1, 8, 8], [4, 4, 2], [1, 2, 2]],
    "the smallest": [[1, 2, 2]],
    "lines": [[1, 2, 30], [1, 14, 2]],
    "larger than the position table": [[1, 20, 12]],
    "many equal pictures": [[1, 16, 22]] * 40,
    "a large picture": [[1, 64, 64]],
}
"""The position table of the tiny config is 7 x 7: no side here equals it."""


def grid_array(grids: Grids) -> np.ndarray:
    """`image_grid_thw` of these grids."""
    return np.array(grids, dtype=np.int64).reshape(-1, 3)


def num_rows(grids: Grids) -> int:
    """R: patch rows of all grids together."""
    return int(grid_array(grids).prod(axis=1).sum())


def patch_rows(grids: Grids, width: int, seed: int = 0) -> np.ndarray:
    """`pixel_values` for these grids: noise of the processor's size."""
    return np.random.default_rng(seed).standard_normal((num_rows(grids), width), dtype=np.float32)


def feature_ranges(grids: Grids, merge_unit: int = 4) -> list[slice]:
    """Feature rows of every segment: each picture, and each frame group of a video."""
    ranges, begin = [], 0
    for frames, height, width in grids:
        for _ in range(frames):
            end = begin + height * width // merge_unit
            ranges.append(slice(begin, end))
            begin = end
    return ranges
