"""Seeded questions with pictures, by kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

KINDS = ("text", "picture", "three pictures", "equal pictures")
NEW_TOKENS = 48
WORDS = "what which part is the red blue green circle square left right above below of how many are there"


def make_question(kind: str, seed: int) -> tuple[str, list[Image.Image]]:
    """A text and its pictures: three of different sizes, or two different ones of the same size."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    sizes = rng.integers(70, 260, size=(3, 2))
    if kind == "equal pictures":
        sizes[1] = sizes[0]
    count = {"text": 0, "picture": 1, "three pictures": 3, "equal pictures": 2}[kind]
    images = [picture(rng, int(width), int(height)) for width, height in sizes[:count]]
    return " ".join(rng.choice(WORDS.split(), size=rng.integers(3, 14))) + "?", images


def picture(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Random shapes on a random ground."""
    image = Image.new("RGB", (width, height), tuple(int(c) for c in rng.integers(0, 256, 3)))
    draw = ImageDraw.Draw(image)
    for _ in range(5):
        x, y = int(rng.integers(0, width)), int(rng.integers(0, height))
        box = [x, y, x + int(rng.integers(8, width)), y + int(rng.integers(8, height))]
        shape = draw.ellipse if rng.random() < 0.5 else draw.rectangle
        shape(box, fill=tuple(int(c) for c in rng.integers(0, 256, 3)))
    return image


def conversation(text: str, images: Sequence[Image.Image | None]) -> list[dict[str, Any]]:
    """One user turn; a picture that is None leaves its part without one, as Transformers' template takes it."""
    parts = [{"type": "image"} if image is None else {"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}] if parts else text}]
