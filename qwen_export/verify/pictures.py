"""Pictures that show a wrong layout: asymmetric, of many colours and frequencies, seeded.

A picture of one colour, or a symmetric one, looks alike after a swap of rows and columns, of patches, or of channels.
"""

from __future__ import annotations

import numpy as np
from PIL import Image


def asymmetric_picture(rng: np.random.Generator, width: int, height: int, shift: int = 0) -> Image.Image:
    """A red left edge, a green bottom, a blue corner on a slanted grey ramp, and a seeded texture over all of it.

    Args: shift: pixels by which a bright block has moved; for the frames of a video.
    """
    row, column = np.indices((height, width))
    ramp = 60 + 120 * (0.7 * column / width + 0.3 * row / height)
    out = np.repeat(ramp[:, :, None], 3, axis=2)
    out[:, : max(1, width // 8)] = (230, 20, 30)
    out[height - max(1, height // 6) :, :] = (30, 200, 40)
    out[: height // 4, width - width // 4 :] = (40, 60, 240)
    top, left = height // 3, (width // 4 + shift) % max(1, width - width // 5)
    out[top : top + height // 5, left : left + width // 5] = (250, 240, 90)
    out += rng.normal(0, 25, size=(height, width, 1)) + rng.normal(0, 10, size=(height, width, 3))
    return Image.fromarray(np.clip(out, 0, 255).astype(np.uint8))


def moving_frames(rng: np.random.Generator, count: int, width: int, height: int) -> list[Image.Image]:
    """Frames in which a block moves to the right."""
    return [asymmetric_picture(rng, width, height, shift=index * width // 8) for index in range(count)]
