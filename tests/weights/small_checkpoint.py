"""A few tensors in one safetensors file, with just what the weights room reads of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from qwen_export.checkpoint import TensorInfo

NAMES = {np.dtype(ml_dtypes.bfloat16): "bfloat16", np.dtype(np.float16): "float16", np.dtype(np.float32): "float32"}


@dataclass(frozen=True)
class SmallCheckpoint:
    """Stands in for a `Snapshot`: `tensors` alone."""

    tensors: dict[str, TensorInfo]
    arrays: dict[str, np.ndarray]


def small_checkpoint(file: Path, arrays: dict[str, np.ndarray]) -> SmallCheckpoint:
    """Write arrays one after another behind 10 bytes that stand for a header."""
    position, infos = 10, {}
    with open(file, "wb") as handle:
        handle.write(b"0123456789")
        for key, array in arrays.items():
            handle.write(array.tobytes())
            stop = position + array.nbytes
            infos[key] = TensorInfo(key, f"raw.{key}", file, NAMES[array.dtype], array.shape, position, stop)
            position = stop
    return SmallCheckpoint(infos, arrays)


def bf16(shape: tuple[int, ...], seed: int, scale: float = 0.5) -> np.ndarray:
    """Seeded normal numbers in bfloat16."""
    values = np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(scale)
    return values.astype(ml_dtypes.bfloat16)
