"""Which questions of a data set are asked: indices, limit and shard."""

from __future__ import annotations

import re

from qwen_export.errors import UsageError


def select(total: int, *, indices: str | None = None, limit: int | None = None, shard: str | None = None) -> list[int]:
    """Row numbers in rising order.

    Args:
        indices: such as `0-99,124`; both ends count. None selects all.
        limit: the first so many of them.
        shard: `i/n`, the i-th of n parts (from 1); the parts of one selection never overlap.
    """
    chosen = list(range(total)) if indices is None else sorted(_parse(indices, total))
    if limit is not None:
        if limit < 1:
            raise UsageError(f"--limit must be at least 1, not {limit}.")
        chosen = chosen[:limit]
    if shard is not None:
        number, parts = _shard(shard)
        chosen = chosen[number - 1 :: parts]
    if not chosen:
        raise UsageError("No question is left to ask. Widen --indices, --limit or --shard.")
    return chosen


def _parse(text: str, total: int) -> set[int]:
    chosen: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if not match:
            raise UsageError(f"--indices: {part.strip()!r} is no number or range. Write them as in 0-99,124.")
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if last < first or last >= total:
            raise UsageError(f"--indices: {part.strip()} is outside the data set's rows 0 to {total - 1}.")
        chosen.update(range(first, last + 1))
    return chosen


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--shard must be i/n with i from 1 to n, such as 2/4, not {text!r}.")
    return int(match[1]), int(match[2])
