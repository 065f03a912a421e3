"""The cases of a verdict: seeded prompts with and without media, whole or in slices, padded or not.

A case is plain numpy data, so that both sides of the comparison, on two machines if need be, are given the same. Shape
letters: `qwen_export.model_config`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from qwen_export.errors import UsageError
from qwen_export.model_config import ModelConfig
from qwen_export.runtime.preprocess import IMAGE, ImagePreprocessor, Media, stack_grids
from qwen_export.runtime.video import prepare_video, read_settings
from qwen_export.verify.pictures import asymmetric_picture, moving_frames

SUITES = ("quick", "full")
SAMPLED_POSITIONS = 32
"""Prompt positions of a case at which logits and hidden states are compared, beside the ends of slices."""


@dataclass(frozen=True)
class Plan:
    """What a case is about, before anything is drawn."""

    name: str
    rows: tuple[str, ...]
    """What each row holds, for instance `text 65` or `image 160x96, text 12`."""
    slices: tuple[int, ...] = ()
    """Lengths in which the prompt is fed; the rest follows in one piece. Media lie in the first slice."""
    steps: int = 5
    """Decode steps after the prompt."""
    repeat: bool = False
    """Nearly identical tokens: one id throughout, another one at every 16th place."""
    growing: bool = False
    """Feed every prefix as a prompt of its own: logits of each position, also from a package that gives the last."""


@dataclass(frozen=True)
class Case:
    """One prompt and how it is fed."""

    name: str
    seed: int
    input_ids: np.ndarray
    """int64 [B, S], placeholders expanded."""
    mask: np.ndarray
    """int64 [B, S]; 0 for left padding."""
    media: tuple[Media, ...]
    """In the order of their placeholders, across the rows."""
    slices: tuple[int, ...]
    steps: int
    growing: bool
    positions: tuple[int, ...]
    """Prompt positions at which logits and hidden states are compared."""

    @property
    def length(self) -> int:
        """S, the prompt's length with padding."""
        return self.input_ids.shape[1]

    def grids(self, kind: str) -> np.ndarray:
        """int64 [M, 3] of one kind of media."""
        return stack_grids([item for item in self.media if item.kind == kind])

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The case as arrays by name, for a reference file."""
        facts = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("input_ids", "mask", "media")}
        facts["media"] = [{"kind": m.kind, "grid": m.grid, "name": m.name} for m in self.media]
        pixels = [item.pixel_values for item in self.media]
        return {
            "input_ids": self.input_ids,
            "mask": self.mask,
            "pixel_values": np.concatenate(pixels) if pixels else np.zeros((0, 0), np.float32),
            "facts": np.frombuffer(json.dumps(facts).encode(), np.uint8),
        }

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> Case:
        """Read what `to_arrays` gave."""
        facts = json.loads(arrays["facts"].tobytes())
        ends = np.cumsum([np.prod(m["grid"]) for m in facts["media"]], dtype=int)
        parts = np.split(arrays["pixel_values"], ends[:-1]) if len(ends) else []
        media = [
            Media(m["kind"], pixels, tuple(m["grid"]), m["name"])
            for m, pixels in zip(facts.pop("media"), parts, strict=True)
        ]
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in facts.items()}
        return Case(input_ids=arrays["input_ids"], mask=arrays["mask"], media=tuple(media), **values)


def plans(suite: str) -> list[tuple[Plan, int]]:
    """Every plan of a suite with its seed. `quick` has one seed and few steps, `full` three seeds and 64 steps.

    Both hold prompts of 1, 65, 300 and more than 1,000 tokens, at least 16 cases, and at least 4 decode steps.
    """
    if suite not in SUITES:
        raise UsageError(f"Unknown suite {suite!r}. Known: {', '.join(SUITES)}.")
    seeds, steps = ((0,), 5) if suite == "quick" else ((0, 1, 2), 64)
    found = [(plan, seed) for seed in seeds for plan in _plans(steps)]
    if suite == "full":
        found.append((Plan("very-long", ("text 2200",), slices=(1024, 1024), steps=steps), 0))
    return found


def _plans(steps: int) -> list[Plan]:
    return [
        Plan("one-token", ("text 1",), steps=steps),
        Plan("three-tokens", ("text 3",), steps=steps),
        Plan("text", ("text 65",), steps=steps),
        Plan("chunk-edge", ("text 128",), steps=steps),
        Plan("text-300", ("text 300",), steps=steps),
        Plan("long", ("text 1030",), steps=steps),
        Plan("sliced", ("text 167",), slices=(70, 1, 33), steps=steps),
        Plan("same-tokens", ("text 130",), steps=steps, repeat=True),
        Plan("two-rows", ("text 90", "text 90"), steps=steps),
        Plan("padded", ("text 70", "text 64", "text 11"), steps=steps),
        Plan("padded-slices", ("text 90", "text 40"), slices=(30, 40), steps=steps),
        Plan("image", ("text 4, image 160x96, text 9",), steps=steps),
        Plan("unequal-images", ("text 3, image 96x224, text 5, image 320x128, image 128x128, text 6",), steps=steps),
        Plan("video", ("text 3, video 5 160x96, text 7",), steps=steps),
        Plan("image-and-video", ("text 2, image 224x96, text 4, video 4 96x160, text 5",), steps=steps),
        Plan("mixed-rows", ("text 5, image 192x128, text 12", "text 20", "image 96x160, text 8"), steps=steps),
        Plan("image-then-text", ("image 256x160, text 80",), slices=(50,), steps=steps),
        Plan("growing", ("text 24",), steps=0, growing=True),
    ]


class CaseMaker:
    """Draws the cases for one model, with the checkpoint's own image and video settings."""

    def __init__(self, config: ModelConfig, folder: Path) -> None:
        """Args: folder: holds the processor files: a package or a checkpoint."""
        self.config, self.folder = config, folder
        special = [config.image_token_id, config.video_token_id]
        special += [config.vision_start_token_id, config.vision_end_token_id]
        self._plain = np.setdiff1d(np.arange(config.text.vocab_size), special)

    def make(self, plan: Plan, seed: int) -> Case:
        """Draw one case.

        Raises:
            InputError, PackageError: the media cannot be prepared; the message says why the case is not run.
        """
        rng = np.random.default_rng([seed, *plan.name.encode()])
        media: list[Media] = []
        rows = [np.array(list(self._row(text, plan, rng, media)), dtype=np.int64) for text in plan.rows]
        length = max(map(len, rows))
        ids, mask = np.zeros((len(rows), length), np.int64), np.zeros((len(rows), length), np.int64)
        for index, row in enumerate(rows):
            ids[index, length - len(row) :], mask[index, length - len(row) :] = row, 1
        slices = self._slices(plan, ids)
        ends = np.cumsum(slices) - 1
        sampled = rng.choice(length, size=min(length, SAMPLED_POSITIONS), replace=False)
        positions = range(length) if plan.growing else np.union1d(ends, sampled)
        return Case(
            f"{plan.name}#{seed}", seed, ids, mask, tuple(media), slices, plan.steps, plan.growing,
            tuple(int(p) for p in positions),
        )  # fmt: skip

    def _row(self, text: str, plan: Plan, rng: np.random.Generator, media: list[Media]) -> Iterator[int]:
        for item in text.split(", "):
            kind, *sizes = item.split()
            if kind == "text":
                yield from self._tokens(int(sizes[0]), plan.repeat, rng)
                continue
            width, height = (int(n) for n in sizes[-1].split("x"))
            if kind == IMAGE:
                drawn = asymmetric_picture(rng, width, height)
                media.append(ImagePreprocessor(self.folder).prepare(drawn, name=item))
                yield from self._block(self.config.image_token_id, media[-1])
            else:
                frames = moving_frames(rng, int(sizes[0]), width, height)
                media.append(prepare_video(frames, read_settings(self.folder)))
                for _ in range(media[-1].grid[0]):
                    yield from self._tokens(3, False, rng)  # in the place of a timestamp
                    yield from self._block(self.config.video_token_id, media[-1])

    def _block(self, token: int, item: Media) -> Iterator[int]:
        assert self.config.vision is not None
        _, height, width = item.grid
        yield self.config.vision_start_token_id
        yield from [token] * (height * width // self.config.vision.merge_unit)
        yield self.config.vision_end_token_id

    def _tokens(self, count: int, repeat: bool, rng: np.random.Generator) -> Iterator[int]:
        drawn = rng.choice(self._plain, size=count)
        for index, token in enumerate(drawn):
            yield int(drawn[0] if repeat and index % 16 else token)

    def _slices(self, plan: Plan, ids: np.ndarray) -> tuple[int, ...]:
        """The plan's slices, the first one long enough to hold all media, and the rest."""
        placeholders = np.isin(ids, [self.config.image_token_id, self.config.video_token_id]).any(axis=0)
        first_free = int(np.flatnonzero(placeholders)[-1]) + 2 if placeholders.any() else 0
        cuts = [cut for cut in np.cumsum(plan.slices) if first_free <= cut < ids.shape[1]]
        if plan.slices and not cuts and first_free < ids.shape[1]:
            cuts = [first_free]
        return tuple(int(n) for n in np.diff([0, *cuts, ids.shape[1]]))


def needs_vision(plan: Plan) -> bool:
    """Whether a plan has pictures or videos."""
    return any("image" in row or "video" in row for row in plan.rows)


def sampled_rows(count: int) -> np.ndarray:
    """Which of `count` patch rows are compared between the blocks of the vision encoder: all, or 256 spread evenly."""
    return np.linspace(0, count - 1, min(count, 256)).round().astype(np.int64)
