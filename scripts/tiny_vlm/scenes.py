"""Draw labelled diagrams: a few coloured shapes, each with a capital letter beside it.

What training never sees is decided here: some sets of occupied places and some pairs of colour and shape are kept for
the held-out pictures.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache
from random import Random

from PIL import Image, ImageDraw, ImageFont

COLOURS = {
    "red": (205, 30, 35),
    "green": (40, 150, 60),
    "blue": (40, 80, 200),
    "yellow": (240, 220, 50),
    "orange": (240, 135, 30),
    "purple": (135, 55, 165),
}
SHAPES = ("circle", "square", "triangle", "diamond")
LABELS = tuple("EFGHKLMPRSTX")
PLACES = ("top left", "top", "top right", "left", "center", "right", "bottom left", "bottom", "bottom right")
"""The nine ninths of a picture, row by row."""

HELD_OUT_PAIRS = frozenset({("red", "triangle"), ("green", "diamond"), ("blue", "square"), ("yellow", "circle")})
"""Never drawn in training; every colour and every shape is, with others."""

_PAPER = ((255, 255, 255), (246, 246, 240), (236, 242, 250), (232, 232, 232), (250, 240, 232))
_INK = ((0, 0, 0), (40, 40, 40), (20, 20, 80))


@dataclass(frozen=True)
class Part:
    """One labelled shape; `x` and `y` are its middle as fractions of the picture."""

    label: str
    colour: str
    shape: str
    place: int
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True)
class Scene:
    """A drawn picture and what is on it."""

    picture: Image.Image
    parts: tuple[Part, ...]


def is_held_out(places: list[int]) -> bool:
    """Whether this set of occupied places (three or more) is kept from training: about one in five."""
    return len(places) >= 3 and zlib.crc32(bytes(sorted(places))) % 5 == 0


def draw_scene(rng: Random, size: tuple[int, int], count: int, *, held_out: bool = False) -> Scene:
    """A picture of `count` parts.

    Args:
        size: width and height in pixels.
        held_out: use a set of places and at least one pair of colour and shape that training never shows.
    """
    parts = _choose_parts(rng, count, held_out=held_out)
    scale = 2 if max(size) <= 400 else 1
    width, height = size[0] * scale, size[1] * scale
    picture = Image.new("RGB", (width, height), rng.choice(_PAPER))
    pen = ImageDraw.Draw(picture)
    ink = rng.choice(_INK)
    outlined = rng.random() < 0.5
    placed = tuple(_draw_part(pen, rng, part, (width, height), ink, outlined) for part in parts)
    return Scene(picture.reduce(scale) if scale > 1 else picture, placed)


def _choose_parts(rng: Random, count: int, *, held_out: bool) -> list[Part]:
    places = rng.sample(range(9), count)
    while 3 <= count <= 6 and is_held_out(places) != held_out:
        places = rng.sample(range(9), count)
    pairs = [(rng.choice(tuple(COLOURS)), rng.choice(SHAPES)) for _ in range(count)]
    if held_out:
        pairs[rng.randrange(count)] = rng.choice(sorted(HELD_OUT_PAIRS))
    else:
        pairs = [pair if pair not in HELD_OUT_PAIRS else ("orange", pair[1]) for pair in pairs]
    labels = rng.sample(LABELS, count)
    return [Part(label, *pair, place) for label, pair, place in zip(labels, pairs, places, strict=True)]


def _draw_part(
    pen: ImageDraw.ImageDraw,
    rng: Random,
    part: Part,
    size: tuple[int, int],
    ink: tuple[int, int, int],
    outlined: bool,
) -> Part:
    """Draw shape and letter as one block somewhere in the part's ninth."""
    cell_width, cell_height = size[0] / 3, size[1] / 3
    unit = min(cell_width, cell_height)
    radius = unit * rng.uniform(0.2, 0.27)
    letter = unit * rng.uniform(0.36, 0.46)
    step = radius + letter * 0.42 + unit * rng.uniform(0.02, 0.05)
    dx, dy = rng.choice(((1, 0), (-1, 0), (0, 1), (0, -1)))
    # The shape's middle may lie where shape and letter both stay inside the ninth.
    x = _somewhere(rng, cell_width, radius, step * dx, letter * 0.4) + cell_width * (part.place % 3)
    y = _somewhere(rng, cell_height, radius, step * dy, letter * 0.4) + cell_height * (part.place // 3)
    colour = tuple(min(255, max(0, channel + rng.randint(-14, 14))) for channel in COLOURS[part.colour])
    edge = ink if outlined else None
    _draw_shape(pen, part.shape, x, y, radius, colour, edge, max(1, round(unit * 0.03)))
    font = _font(max(8, round(letter)))
    pen.text(
        (x + step * dx, y + step * dy), part.label, fill=ink, font=font, anchor="mm", stroke_width=_bold(rng, unit)
    )
    return Part(part.label, part.colour, part.shape, part.place, x / size[0], y / size[1])


def _somewhere(rng: Random, length: float, radius: float, offset: float, half_letter: float) -> float:
    low = max(radius, half_letter - offset) + 0.02 * length
    high = length - max(radius, half_letter + offset) - 0.02 * length
    return rng.uniform(low, high) if low < high else (low + high) / 2


def _draw_shape(
    pen: ImageDraw.ImageDraw,
    shape: str,
    x: float,
    y: float,
    radius: float,
    fill: tuple[int, ...],
    edge: tuple[int, int, int] | None,
    line: int,
) -> None:
    if shape == "circle":
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill, outline=edge, width=line)
        return
    half = radius * 0.88
    corners = {
        "square": ((x - half, y - half), (x + half, y - half), (x + half, y + half), (x - half, y + half)),
        "triangle": ((x, y - radius), (x + radius, y + half), (x - radius, y + half)),
        "diamond": ((x, y - radius * 1.1), (x + radius * 1.1, y), (x, y + radius * 1.1), (x - radius * 1.1, y)),
    }[shape]
    pen.polygon(corners, fill=fill, outline=edge, width=line)


def _bold(rng: Random, unit: float) -> int:
    return round(unit * 0.012) if rng.random() < 0.5 else 0


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
