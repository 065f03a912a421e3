"""Pictures of any size: which sizes are drawn, and how the image processor brings them onto its grid."""

from __future__ import annotations

from random import Random

from PIL import Image

PATCH, MERGE = 16, 2
CELL = PATCH * MERGE
"""Pixels of one image token, each way."""
MIN_PIXELS, MAX_PIXELS = 96 * 96, 192 * 192
"""The image processor scales pictures into this range, so that every picture meets a trained grid."""

GRIDS = tuple(
    (rows, columns)
    for rows in range(3, 9)
    for columns in range(3, 9)
    if MIN_PIXELS <= rows * columns * CELL * CELL <= MAX_PIXELS and max(rows, columns) <= 2 * min(rows, columns)
)
"""(rows, columns) of image tokens that training draws: up to twice as long as wide."""


def choose_size(rng: Random, grid: tuple[int, int]) -> tuple[int, int]:
    """A width and height that the image processor brings to this grid: on it, off it, larger, or a little smaller."""
    if rng.random() < 0.2:
        return grid[1] * CELL, grid[0] * CELL
    for _ in range(1000):
        scale = rng.choice((1.0, 1.0, rng.uniform(0.85, 1.3), rng.uniform(1.2, 3.5)))
        width = round(grid[1] * CELL * scale * rng.uniform(0.85, 1.17))
        height = round(grid[0] * CELL * scale * rng.uniform(0.85, 1.17))
        if grid_of(width, height) == grid:
            return width, height
    return grid[1] * CELL, grid[0] * CELL


def grid_of(width: int, height: int) -> tuple[int, int]:
    """(rows, columns) of image tokens that a picture of this size gets."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    new_height, new_width = smart_resize(height, width, CELL, MIN_PIXELS, MAX_PIXELS)
    return new_height // CELL, new_width // CELL


def fit(picture: Image.Image, grid: tuple[int, int]) -> Image.Image:
    """The image processor's own resize."""
    size = (grid[1] * CELL, grid[0] * CELL)
    return picture if picture.size == size else picture.resize(size, Image.Resampling.BICUBIC)
