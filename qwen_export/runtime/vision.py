"""Run the vision graph: pictures and frame groups in packs of similar size, features back in the order of the prompt.

The graph pads every picture of a run to the longest one, so one large picture among many small ones would multiply the
work. A pack's padded rows are therefore at most twice its real ones. A video is cut between frame groups: each attends
only to itself, so the cut changes nothing and memory does not grow with the video.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qwen_export.contract import VISION_ENCODER
from qwen_export.errors import InputError, InternalError
from qwen_export.runtime.graphs import Graphs
from qwen_export.runtime.memory import MemoryModel, check_vision, free_memory, vision_fits
from qwen_export.runtime.preprocess import Media

MAX_ROWS = 16384
"""Padded patch rows of one run, unless a single picture has more."""


@dataclass(frozen=True)
class Segment:
    """A picture, or one frame group of a video: rows that attend to each other."""

    media: int
    step: int
    height: int
    width: int

    @property
    def rows(self) -> int:
        return self.height * self.width


def segments_of(media: Sequence[Media]) -> list[Segment]:
    """Every segment in the order of its features."""
    return [
        Segment(index, step, item.grid[1], item.grid[2])
        for index, item in enumerate(media)
        for step in range(item.grid[0])
    ]


def pack(rows: Sequence[int], max_rows: int = MAX_ROWS) -> list[list[int]]:
    """Indices of segments that run together: padded rows at most twice the real ones and at most `max_rows`."""
    packs: list[list[int]] = []
    longest = real = 0
    for index in sorted(range(len(rows)), key=lambda i: -rows[i]):
        padded = (len(packs[-1]) + 1) * longest if packs else 0
        if not packs or padded > 2 * (real + rows[index]) or padded > max_rows:
            packs.append([])
            longest, real = rows[index], 0
        packs[-1].append(index)
        real += rows[index]
    return [sorted(group) for group in packs]


def encode_media(graphs: Graphs, media: Sequence[Media]) -> np.ndarray:
    """Feature rows [F, D] of all media in order, on the host; bfloat16 as uint16 bits."""
    vision = graphs.config.vision
    if not media or vision is None:
        return graphs.no_features()
    for item in media:
        t, h, w = item.grid
        if item.pixel_values.shape != (t * h * w, vision.patch_width):
            raise InputError(
                f"{item.name}: {item.pixel_values.shape[0]} patch rows of {item.pixel_values.shape[1]} numbers do not "
                f"fit its grid {t}x{h}x{w} and the model's {vision.patch_width} numbers a patch."
            )
    segments = segments_of(media)
    model = MemoryModel(graphs.config, graphs.recipe, graphs.device)
    found: list[np.ndarray | None] = [None] * len(segments)
    waiting = pack([segment.rows for segment in segments])
    while waiting:
        group = waiting.pop()
        members = [segments[i] for i in group]
        size = len(members), max(s.rows for s in members)
        if len(members) > 1 and not vision_fits(model, *size, lambda: free_memory(graphs.device)):
            waiting += [group[: len(group) // 2], group[len(group) // 2 :]]
            continue
        check_vision(model, *size, lambda: free_memory(graphs.device))
        features = _run(graphs, [media[s.media] for s in members], members)
        counts = [s.rows // vision.merge_unit for s in members]
        if len(features) != sum(counts):
            raise InternalError(f"the vision graph gave {len(features)} feature rows, expected {sum(counts)}")
        for index, part in zip(group, np.split(features, np.cumsum(counts)[:-1]), strict=True):
            found[index] = part
    return np.concatenate([part for part in found if part is not None])


def _run(graphs: Graphs, owners: list[Media], members: list[Segment]) -> np.ndarray:
    parts = [
        owner.pixel_values[segment.step * segment.rows : (segment.step + 1) * segment.rows]
        for owner, segment in zip(owners, members, strict=True)
    ]
    grids = np.array([[1, segment.height, segment.width] for segment in members], dtype=np.int64)
    inputs = {"pixel_values": np.concatenate(parts), "image_grid_thw": grids}
    return graphs.run_to_host(VISION_ENCODER, inputs)["image_features"]
