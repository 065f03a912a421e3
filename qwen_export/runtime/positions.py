"""M-RoPE positions in numpy, equal to Transformers' `Qwen3_5Model.get_rope_index`.

A text token has one position on all three axes. A picture's tokens share the temporal position and count rows and
columns from there; the next token follows the larger of both. A video of t frame groups is t such blocks, with its
timestamps as text between them. So a row has a *next position*, which is not its number of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qwen_export.errors import InputError
from qwen_export.model_config import ModelConfig


def rope_positions(
    input_ids: np.ndarray,
    config: ModelConfig,
    *,
    image_grids: np.ndarray | None = None,
    video_grids: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    start: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of whole rows, or of a further turn that continues carried states.

    Args:
        input_ids: int64 [B, S] with placeholders already expanded; no picture may be cut in two.
        image_grids, video_grids: int64 [M, 3] (t, h, w) in the order of the placeholders, running on across rows.
        mask: int64 [B, S], 0 for padding, whose positions are 0.
        start: int64 [B], the next position of each row; 0 for new rows.

    Returns:
        positions int64 [3, B, S] and the next position of each row, int64 [B].

    Raises:
        InputError: placeholders and grids do not agree.
    """
    batch, length = input_ids.shape
    blocks = {
        config.image_token_id: _blocks(image_grids, config),
        config.video_token_id: _blocks(video_grids, config),
    }
    positions = np.zeros((3, batch, length), dtype=np.int64)
    following = np.zeros(batch, dtype=np.int64) if start is None else np.array(start, dtype=np.int64)
    for row in range(batch):
        real = np.ones(length, dtype=bool) if mask is None else mask[row].astype(bool)
        values, following[row] = _row(input_ids[row][real], blocks, int(following[row]))
        positions[:, row, real] = values
    for token, rest in blocks.items():
        if next(rest, None) is not None:
            kind = "image" if token == config.image_token_id else "video"
            raise InputError(f"More {kind}s were given than the prompt has {kind} placeholders for.")
    return positions, following


def text_positions(start: np.ndarray, length: int) -> np.ndarray:
    """Positions of `length` text tokens in every row: int64 [3, B, length]."""
    return np.broadcast_to(start[None, :, None] + np.arange(length, dtype=np.int64), (3, len(start), length)).copy()


def _blocks(grids: np.ndarray | None, config: ModelConfig) -> Iterator[tuple[int, int]]:
    """Merged (rows, columns) of every picture and frame group."""
    if grids is None or len(grids) == 0:
        return iter(())
    if config.vision is None:
        raise InputError("This package has no vision encoder: it takes text only.")
    merge = config.vision.spatial_merge_size
    return iter([(int(h) // merge, int(w) // merge) for t, h, w in grids for _ in range(int(t))])


def _row(ids: np.ndarray, blocks: dict[int, Iterator[tuple[int, int]]], start: int) -> tuple[np.ndarray, int]:
    """Positions [3, S] of one row without padding, and its next position."""
    out = np.empty((3, len(ids)), dtype=np.int64)
    placeholder = np.isin(ids, list(blocks))
    done, position = 0, start
    while done < len(ids):
        if not placeholder[done]:
            run = _run_length(placeholder, done)
            out[:, done : done + run] = position + np.arange(run)
            done, position = done + run, position + run
            continue
        height, width = next(blocks[int(ids[done])], (0, 0))
        count = height * width
        if not count or done + count > len(ids) or not (ids[done : done + count] == ids[done]).all():
            raise InputError(
                f"Placeholders and pictures do not agree: at token {done} of the row {count or 'no more'} placeholders "
                f"of one picture or frame are expected. The prompt was expanded for other pictures."
            )
        out[0, done : done + count] = position
        out[1, done : done + count] = position + np.repeat(np.arange(height), width)
        out[2, done : done + count] = position + np.tile(np.arange(width), height)
        done, position = done + count, position + max(height, width)
    return out, position


def _run_length(flags: np.ndarray, start: int) -> int:
    """How many entries from `start` on equal the one there."""
    changed = np.flatnonzero(flags[start:] != flags[start])
    return int(changed[0]) if len(changed) else len(flags) - start
