"""The values of a synthetic checkpoint: seeded per tensor, and lively.

Solid or zero weights hide faults, so every tensor that could hide one is far from its neutral value: norm offsets,
biases, decay rates. Yet the model stays tame: activations keep a spread of about 1 to 3 through any depth, recurrent
states forget over tens of tokens, logits reach 2 to 8, and rounding noise is not blown up.

Large tensors are drawn by inverting the normal distribution on 16 random bits: one table look-up per value, quick and
exact to bfloat16. A block of values depends on (seed, key, block index) alone, so neither sharding nor threads matter.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import log, prod, sqrt
from statistics import NormalDist

import ml_dtypes
import numpy as np

BLOCK_VALUES = 1 << 22
"""Values per block (8 MiB of bfloat16): the most of a tensor that is in memory at once, per thread."""

_LEVELS = 1 << 16


@dataclass(frozen=True)
class Spread:
    """How the values of a tensor are drawn: normal around `mean`, or log-uniform between `low` and `high`."""

    std: float = 0.0
    mean: float = 0.0
    low: float = 0.0
    high: float = 0.0
    map: str = "normal"
    """`normal`; `log`: the logarithm of the log-uniform draw; `inverse_softplus`: softplus of it is the draw."""


# First match wins. `gain` is the standard deviation of the output for unit input: the weights get gain / sqrt(fan in).
_FIXED: tuple[tuple[str, Spread], ...] = (
    # Forgetting per token is exp(A_log) * softplus(a + dt_bias): 0.01 to 0.15, so a state lasts 7 to 100 tokens.
    (r"linear_attn\.A_log$", Spread(low=0.5, high=2.0, map="log")),
    (r"linear_attn\.dt_bias$", Spread(low=0.02, high=0.07, map="inverse_softplus")),
    # This norm is plain (around 1), all other text norms are zero-centred (1 + weight).
    (r"linear_attn\.norm\.weight$", Spread(mean=1.0, std=0.2)),
    # Unequal taps: a state shifted by one column must be seen.
    (r"conv1d\.weight$", Spread(mean=0.2, std=0.5)),
    (r"embed_tokens\.weight$", Spread(std=1.0)),
    (r"pos_embed\.weight$", Spread(std=0.7)),
    (r"visual\..*norm\d?\.weight$", Spread(mean=1.0, std=0.2)),
    (r"\.bias$", Spread(std=0.2)),
    (r"norm\w*\.weight$", Spread(mean=0.1, std=0.2)),
)
_GAINS: tuple[tuple[str, float], ...] = (
    (r"^lm_head\.weight$", 1.2),
    (r"in_proj_a\.weight$", 0.5),
    # Branch outputs: a gate or an average has shrunk what arrives here; each branch adds about 0.5 to the residual.
    (r"self_attn\.o_proj\.weight$", 1.5),
    (r"(out_proj|down_proj)\.weight$", 0.9),
    (r"visual\..*(attn\.proj|linear_fc2)\.weight$", 1.0),
    (r"merger\.linear_fc2\.weight$", 1.5),
)


def spread(key: str, shape: tuple[int, ...]) -> Spread:
    """The distribution of one tensor, by its name."""
    for pattern, fixed in _FIXED:
        if re.search(pattern, key):
            return fixed
    gain = next((gain for pattern, gain in _GAINS if re.search(pattern, key)), 1.0)
    return Spread(std=gain / sqrt(prod(shape[1:])))


def num_blocks(shape: tuple[int, ...]) -> int:
    """Blocks that `block` cuts a tensor into."""
    return -(-prod(shape) // BLOCK_VALUES)


def block(key: str, shape: tuple[int, ...], index: int, seed: int) -> np.ndarray:
    """Values of one block of a tensor in row-major order, as the bits of bfloat16 (uint16)."""
    count = min(BLOCK_VALUES, prod(shape) - index * BLOCK_VALUES)
    words = hashlib.sha256(f"{seed}/{key}/{index}".encode()).digest()
    raw = np.random.SFC64(list(np.frombuffer(words, dtype="<u4").tolist())).random_raw(-(-count // 4))
    levels = raw.astype("<u8", copy=False).view("<u2")[:count]
    return np.take(_table(spread(key, shape)), levels)


def blocks(key: str, shape: tuple[int, ...], seed: int) -> Iterator[np.ndarray]:
    """All blocks of a tensor, in order."""
    return (block(key, shape, index, seed) for index in range(num_blocks(shape)))


@lru_cache(maxsize=64)
def _table(kind: Spread) -> np.ndarray:
    """Level -> bfloat16 bits."""
    if kind.map == "normal":
        values = _normal_levels() * kind.std + kind.mean
    else:
        fractions = (np.arange(_LEVELS) + 0.5) / _LEVELS
        values = np.exp(log(kind.low) + fractions * log(kind.high / kind.low))
        values = np.log(values) if kind.map == "log" else np.log(np.expm1(values))
    return values.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)


@lru_cache(maxsize=1)
def _normal_levels() -> np.ndarray:
    """Quantiles of the standard normal distribution in the middle of each of 65,536 equal slices (up to 4.2)."""
    half = np.array([NormalDist().inv_cdf((i + 0.5) / _LEVELS) for i in range(_LEVELS // 2)])
    return np.concatenate([half, -half[::-1]])
