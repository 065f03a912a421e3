"""Plan a synthetic checkpoint: every tensor of the official layout, its shape, and the shard it goes to."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from qwen_export.checkpoint.inventory import (
    HEAD_KEY,
    LANGUAGE_PREFIX,
    VISUAL_PREFIX,
    Shapes,
    components_of,
    expected_tensors,
    mtp_tensors,
)
from qwen_export.model_config import ModelConfig, parse_config

MAX_SHARD_BYTES = 3_400_000_000
"""The 27B model falls into 18 shards, as the official one does."""
MIN_SHARDS = 3
"""A small checkpoint is sharded too, so that it walks the same road as the large one."""
BYTES_PER_VALUE = 2
"""Everything is bfloat16, as in the official checkpoints."""


@dataclass(frozen=True)
class Plan:
    """The size of a synthetic checkpoint before a byte of it exists."""

    num_tensors: int
    num_bytes: int
    """Tensor bytes; the safetensors headers and the small files come on top."""
    num_shards: int
    num_visual_tensors: int


def plan(config: dict[str, Any], *, max_shard_bytes: int | None = None) -> Plan:
    """Count what `synthesise` would write for the content of a `config.json`."""
    shapes = tensor_shapes(parse_config(config))
    return Plan(
        num_tensors=len(shapes),
        num_bytes=sum(map(num_bytes, shapes.values())),
        num_shards=len(shards(shapes, max_shard_bytes)),
        num_visual_tensors=sum(VISUAL_PREFIX in key for key in shapes),
    )


def tensor_shapes(config: ModelConfig) -> Shapes:
    """Key -> shape in the order in which they are written.

    A text-only config gives the keys of a text-only checkpoint (`model.layers.*`); a tied head is left out.
    """
    shapes = expected_tensors(config, components_of(config))
    if config.tie_word_embeddings:
        del shapes[HEAD_KEY]
    shapes |= mtp_tensors(config, _num_mtp_layers(config)) if _num_mtp_layers(config) else {}
    if config.vision is None:
        return {key.replace(LANGUAGE_PREFIX, "model."): shape for key, shape in shapes.items()}
    return shapes


def shards(shapes: Shapes, max_shard_bytes: int | None = None) -> list[list[str]]:
    """Fill one shard after the other; a tensor larger than the limit has a shard of its own."""
    if max_shard_bytes is None:
        max_shard_bytes = min(MAX_SHARD_BYTES, sum(map(num_bytes, shapes.values())) // MIN_SHARDS)
    out: list[list[str]] = []
    room = 0
    for key, shape in shapes.items():
        size = num_bytes(shape)
        if not out or size > room:
            out.append([])
            room = max_shard_bytes
        out[-1].append(key)
        room -= size
    return out


def num_bytes(shape: tuple[int, ...]) -> int:
    """Bytes of one tensor."""
    return prod(shape) * BYTES_PER_VALUE


def _num_mtp_layers(config: ModelConfig) -> int:
    text = config.raw.get("text_config", config.raw)
    return int(text.get("mtp_num_hidden_layers") or 0)
