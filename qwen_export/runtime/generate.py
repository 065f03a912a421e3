"""Decode token by token until an end token or the limit, with the figures a user wants to see."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qwen_export.errors import UsageError
from qwen_export.runtime.engine import Engine
from qwen_export.runtime.memory import resident_memory
from qwen_export.runtime.prompt import Prompt
from qwen_export.runtime.sampling import Sampler
from qwen_export.runtime.state import State


@dataclass(frozen=True)
class Statistics:
    """Times in seconds, memory in bytes of this process."""

    prompt_tokens: int
    """Tokens read in this turn, all rows."""
    new_tokens: int
    """Tokens decoded, all rows; an end token counts."""
    time_to_first_token: float
    """From the start of this turn's prefill (pictures included) to its first token."""
    decode_time: float
    """Of all tokens but the first."""
    resident_memory: int
    state_bytes: int

    @property
    def tokens_per_second(self) -> float:
        """Decoded tokens per second after the first one, all rows together; 0 if there was only one."""
        return (self.new_tokens - 1) / self.decode_time if self.decode_time > 0 and self.new_tokens > 1 else 0.0


@dataclass(frozen=True)
class Generation:
    """What one call of `generate` made."""

    tokens: tuple[tuple[int, ...], ...]
    """New tokens of each row; an end token is the last one."""
    ended: tuple[bool, ...]
    """Whether an end token ended the row; otherwise the limit did."""
    state: State
    """State after all tokens but each row's last, which has not been fed."""
    statistics: Statistics


def generate(
    engine: Engine,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    end_tokens: frozenset[int],
    sampler: Sampler,
    state: State | None = None,
    slice_size: int | None = None,
    on_token: Callable[[int, int], None] | None = None,
) -> Generation:
    """Prefill and decode one or several rows.

    Args:
        state: state to continue; None begins new rows.
        on_token: called with (row, token) for each new token that is not an end token.
    """
    check_request(max_new_tokens, slice_size)
    rows: list[list[int]] = [[] for _ in prompts]
    ended = [False] * len(prompts)
    begin = time.perf_counter()
    logits, state = engine.prefill(prompts, state, slice_size, max_new_tokens)
    tokens = sampler.choose(logits)
    first = last = time.perf_counter()
    for step in range(max_new_tokens):
        if step:
            logits, state = engine.decode(tokens, state)
            tokens = sampler.choose(logits)
            last = time.perf_counter()
        for row, token in enumerate(int(t) for t in tokens):
            if ended[row]:
                continue  # the row is done; it is fed along so that the batch keeps its shape
            rows[row].append(token)
            ended[row] = token in end_tokens
            if on_token and not ended[row]:
                on_token(row, token)
        if all(ended):
            break
    statistics = Statistics(
        prompt_tokens=sum(len(prompt.input_ids) for prompt in prompts),
        new_tokens=sum(map(len, rows)),
        time_to_first_token=first - begin,
        decode_time=last - first,
        resident_memory=resident_memory(),
        state_bytes=state.num_bytes,
    )
    return Generation(tuple(map(tuple, rows)), tuple(ended), state, statistics)


def check_request(max_new_tokens: int, slice_size: int | None) -> None:
    """Refuse impossible numbers before any file is opened."""
    if max_new_tokens < 1:
        raise UsageError(f"--max-new-tokens must be at least 1, not {max_new_tokens}.")
    if slice_size is not None and slice_size < 1:
        raise UsageError(f"--prefill-slice must be at least 1, not {slice_size}.")
