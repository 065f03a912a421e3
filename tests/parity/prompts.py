"""Prompts of the parity matrix: rows of text, images and videos, with seeded tokens and patch rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qwen_export.model_config import ModelConfig

NUM_TEXT_IDS = 440
"""Ids below are ordinary tokens in the tiny vocabulary."""
PAD_ID = 0


@dataclass(frozen=True)
class Text:
    """Tokens: `random`, `same` (one token repeated), `periodic` (seven tokens in turn), `placeholder` (image ids)."""

    length: int
    kind: str = "random"


@dataclass(frozen=True)
class Media:
    """An image (t = 1) or a video. look: `noise`, or `blank` (every patch alike)."""

    grid: tuple[int, int, int]
    kind: str = "image"
    look: str = "noise"


Row = tuple[Text | Media, ...]


@dataclass(frozen=True)
class Case:
    """One conversation: rows padded on the left to one length, fed in slices, then decoded greedily."""

    rows: tuple[Row, ...]
    slices: tuple[int, ...] = ()
    """Lengths of the first slices; the rest of the prompt is the last one."""
    pad: int = 0
    """Padding in front of the longest row."""
    steps: int = 4
    seed: int = 0


@dataclass
class Prompt:
    """What both models are given."""

    ids: np.ndarray
    """int64 [B, S]."""
    mask: np.ndarray
    """int64 [B, S], 0 at padding."""
    types: np.ndarray
    """int64 [B, S]: 0 text, 1 image, 2 video."""
    media: list[tuple[Media, np.ndarray]]
    """In the order of their placeholders, across rows: each with its patch rows, float32."""

    def pixels(self, kind: str | None = None) -> np.ndarray | None:
        """Patch rows of all media, or of one kind; None where there are none."""
        found = [rows for media, rows in self.media if kind in (None, media.kind)]
        return np.concatenate(found) if found else None

    def grids(self, kind: str | None = None) -> np.ndarray | None:
        """Grids [M, 3] of all media, or of one kind; None where there are none."""
        found = [media.grid for media, _ in self.media if kind in (None, media.kind)]
        return np.array(found, dtype=np.int64) if found else None


def make_prompt(case: Case, config: ModelConfig) -> Prompt:
    """Draw the tokens and pictures of a case."""
    rng = np.random.default_rng(case.seed)
    media: list[tuple[Media, np.ndarray]] = []
    rows = [[token for part in row for token in _tokens(part, config, rng, media)] for row in case.rows]
    longest = max(map(len, rows)) + case.pad
    ids = np.full((len(rows), longest), PAD_ID, dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, tokens in enumerate(rows):
        ids[row, longest - len(tokens) :] = tokens
        mask[row, longest - len(tokens) :] = 1
    types = np.where(ids == config.image_token_id, 1, np.where(ids == config.video_token_id, 2, 0))
    return Prompt(ids, mask, types if media else np.zeros_like(ids), media)


def _tokens(
    part: Text | Media, config: ModelConfig, rng: np.random.Generator, media: list[tuple[Media, np.ndarray]]
) -> Sequence[int]:
    if isinstance(part, Text):
        if part.kind == "placeholder":
            return [config.image_token_id] * part.length
        few = {"random": part.length, "same": 1, "periodic": 7}[part.kind]
        return np.resize(rng.integers(1, NUM_TEXT_IDS, few), part.length).tolist()
    assert config.vision is not None
    count, height, width = part.grid
    shape = (count * height * width, config.vision.patch_width)
    pixels = np.full(shape, 0.4) if part.look == "blank" else rng.uniform(-1, 1, shape)
    media.append((part, pixels.astype(np.float32)))
    token = config.image_token_id if part.kind == "image" else config.video_token_id
    block = [token] * (height * width // config.vision.merge_unit)
    out: list[int] = []
    for _ in range(count):
        # a frame's timestamp is text
        stamp = rng.integers(1, NUM_TEXT_IDS, 3).tolist() if part.kind == "video" else []
        out += [*stamp, config.vision_start_token_id, *block, config.vision_end_token_id]
    return out
