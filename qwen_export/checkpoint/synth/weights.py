"""The values of a synthetic checkpoint: seeded per tensor, and lively.

Solid or zero weights hide faults, so every tensor that could hide one is far from its neutral value: norm offsets,
biases, decay rates. Yet the model stays tame: activations keep a spread of about 1 to 3 through any depth, recurrent
states forget over tens of tokens, logits reach 2 to 8, and rounding noise is not blown up.

Large tensors are drawn by inverting the normal distribution on 16 random bits: one table look-up per value, quick and
exact to bfloat16. A value depends on (seed, key, place in the tensor) alone, so neither sharding nor threads matter.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from math import log, prod, sqrt
from statistics import NormalDist

import ml_dtypes
import numpy as np

from qwen_export.checkpoint.inventory import HEAD_KEY
from qwen_export.model_config import ModelConfig

BLOCK_VALUES = 1 << 22
"""Values per block (8 MiB of bfloat16): the most of a tensor that is in memory at once, per thread."""

_LEVELS = 1 << 16
_LEVELS_PER_COUNT = 16
"""Philox gives four 64-bit words per step of its counter."""


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
    (r"conv1d\.weight$", Spread(mean=0.5, std=0.25)),
    (r"embed_tokens\.weight$", Spread(std=1.0)),
    (r"pos_embed\.weight$", Spread(std=1.0)),
    (r"visual\..*norm\d?\.weight$", Spread(mean=1.0, std=0.2)),
    (r"\.bias$", Spread(std=0.2)),
    (r"norm\w*\.weight$", Spread(mean=0.1, std=0.2)),
)
_GAINS: tuple[tuple[str, float], ...] = (
    (r"^lm_head\.weight$", 0.9),
    (r"in_proj_a\.weight$", 0.5),
    # Branch outputs: a gate or an average has shrunk what arrives here; each branch adds about 0.4 to the residual.
    (r"self_attn\.o_proj\.weight$", 1.2),
    (r"(out_proj|down_proj)\.weight$", 0.7),
    # The merger's output stands beside token embeddings of spread 1; GELU has shrunk what arrives.
    (r"merger\.linear_fc2\.weight$", 1.4),
)


def spread(key: str, shape: tuple[int, ...]) -> Spread:
    """The distribution of one tensor, by its name."""
    for pattern, fixed in _FIXED:
        if re.search(pattern, key):
            return fixed
    gain = next((gain for pattern, gain in _GAINS if re.search(pattern, key)), 1.0)
    return Spread(std=gain / sqrt(prod(shape[1:])))


class SyntheticWeights:
    """The values of every tensor of a model, drawn on demand."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self._key_dim = config.text.key_dim
        self._tied = config.tie_word_embeddings
        self._seed = seed

    def block(self, key: str, shape: tuple[int, ...], index: int) -> np.ndarray:
        """Block `index` of a tensor in row-major order, as the bits of bfloat16 (uint16)."""
        start = index * BLOCK_VALUES
        stop = min(start + BLOCK_VALUES, prod(shape))
        # A tied embedding is the head too, and takes the head's spread: logits would reach 50 otherwise.
        role = HEAD_KEY if self._tied and key.endswith("embed_tokens.weight") else key
        table = _table(spread(role, shape))
        values = np.take(table, self._levels(key, start, stop))
        if key.endswith("in_proj_qkv.weight"):
            self._echo_queries(key, shape, start, values)
        return values

    def _echo_queries(self, key: str, shape: tuple[int, ...], start: int, values: np.ndarray) -> None:
        """Make every key row resemble its query row (correlation 0.8).

        The first token reads back `(q . k) v`, which is then normalised: with q and k independent, that product is now
        and then close to zero and the rounding noise of a whole layer is blown up a thousandfold.
        """
        width = self._key_dim * shape[1]
        low, high = max(width, start), min(2 * width, start + values.size)
        if low >= high:
            return
        scale = spread(key, shape).std
        part = slice(low - start, high - start)
        fresh = np.take(_normal_levels(), self._levels(key, low, high))
        query = np.take(_normal_levels(), self._levels(key, low - width, high - width))
        values[part] = _bits((0.6 * fresh + 0.8 * query) * np.float32(scale))

    def _levels(self, key: str, start: int, stop: int) -> np.ndarray:
        """Values `start` to `stop` of the tensor's stream of 16-bit numbers (Philox: any place can be jumped to)."""
        words = hashlib.sha256(f"{self._seed}/{key}".encode()).digest()
        generator = np.random.Philox(key=[int.from_bytes(words[:8], "little"), int.from_bytes(words[8:16], "little")])
        first = start // _LEVELS_PER_COUNT
        generator.advance(first)
        skip = start - first * _LEVELS_PER_COUNT
        raw = generator.random_raw(-(-(skip + stop - start) // 4))
        return raw.astype("<u8", copy=False).view("<u2")[skip : skip + stop - start]


def num_blocks(shape: tuple[int, ...]) -> int:
    """Blocks of a tensor."""
    return -(-prod(shape) // BLOCK_VALUES)


@lru_cache(maxsize=64)
def _table(kind: Spread) -> np.ndarray:
    """Level -> bfloat16 bits."""
    if kind.map == "normal":
        return _bits(_normal_levels() * np.float32(kind.std) + np.float32(kind.mean))
    fractions = (np.arange(_LEVELS) + 0.5) / _LEVELS
    values = np.exp(log(kind.low) + fractions * log(kind.high / kind.low))
    return _bits(np.log(values) if kind.map == "log" else np.log(np.expm1(values)))


@lru_cache(maxsize=1)
def _normal_levels() -> np.ndarray:
    """Quantiles of the standard normal distribution in the middle of each of 65,536 equal slices (up to 4.2)."""
    half = np.array([NormalDist().inv_cdf((i + 0.5) / _LEVELS) for i in range(_LEVELS // 2)], dtype=np.float32)
    return np.concatenate([half, -half[::-1]])


def _bits(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32, copy=False).astype(ml_dtypes.bfloat16).view(np.uint16)
