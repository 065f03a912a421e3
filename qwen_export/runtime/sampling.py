"""Choose the next token from logits, and know which tokens end an answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qwen_export.errors import InternalError, UsageError
from qwen_export.model_config import ModelConfig
from qwen_export.runtime.preprocess import read_json


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. Temperature 0 is greedy; the filters apply in the order temperature, top-k, top-p."""

    temperature: float = 0.0
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the likeliest tokens whose probabilities first reach p."""
    seed: int | None = None

    def __post_init__(self) -> None:
        if not (np.isfinite(self.temperature) and self.temperature >= 0):
            raise UsageError(f"--temperature must be 0 (greedy) or more, not {self.temperature}.")
        if self.top_k < 0:
            raise UsageError(f"--top-k must be 0 (off) or more, not {self.top_k}.")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p must be above 0 and at most 1, not {self.top_p}.")


class Sampler:
    """Chooses tokens, with its own random generator."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def choose(self, logits: np.ndarray) -> np.ndarray:
        """Token ids int64 [B] for logits [B, V].

        Raises:
            UsageError: the logits are not finite, so any choice would be noise.
        """
        if not np.isfinite(logits).all():
            raise UsageError(
                "The model gave logits that are not finite (usually fp16 overflow), so there is no answer. "
                "Export with --dtype bf16 or fp32, and run verify to find the layer."
            )
        if self.sampling.temperature == 0:
            return np.argmax(logits, axis=-1).astype(np.int64)
        scores = filtered(logits.astype(np.float64), self.sampling)
        return np.array([self._random.choice(len(row), p=softmax(row)) for row in scores], dtype=np.int64)


def filtered(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Logits [B, V] after temperature, top-k and top-p; removed tokens are -inf."""
    scores = logits / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        smallest = np.partition(scores, -sampling.top_k, axis=-1)[:, -sampling.top_k, None]
        scores = np.where(scores < smallest, -np.inf, scores)
    if sampling.top_p < 1:
        order = np.argsort(scores, axis=-1, kind="stable")
        mass = np.cumsum(softmax(np.take_along_axis(scores, order, axis=-1)), axis=-1)
        drop = mass <= 1 - sampling.top_p
        drop[:, -1] = False
        removed = np.zeros_like(drop)
        np.put_along_axis(removed, order, drop, axis=-1)
        scores = np.where(removed, -np.inf, scores)
    return scores


def softmax(scores: np.ndarray) -> np.ndarray:
    """Probabilities along the last axis."""
    shifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
    total = shifted.sum(axis=-1, keepdims=True)
    if not np.all(total > 0):
        raise InternalError("softmax over no tokens")
    return shifted / total


def end_tokens(folder: Path, config: ModelConfig) -> frozenset[int]:
    """Every token that ends an answer: of `generation_config.json`, else of `config.json`, as Transformers does."""
    candidates = []
    if (folder / "generation_config.json").is_file():
        candidates.append(read_json(folder / "generation_config.json").get("eos_token_id"))
    candidates.append(config.raw.get("eos_token_id"))
    text = config.raw.get("text_config")
    candidates.append(text.get("eos_token_id") if isinstance(text, dict) else None)
    for found in candidates:
        if found is not None:
            return frozenset(int(token) for token in (found if isinstance(found, list) else [found]))
    return frozenset()
