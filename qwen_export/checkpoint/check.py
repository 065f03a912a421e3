"""Hold the tensors of a checkpoint against what its components are made of."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from qwen_export.checkpoint.inventory import (
    HEAD_KEY,
    VISUAL_PREFIX,
    Shapes,
    components_of,
    expected_tensors,
)
from qwen_export.contract import BFLOAT16, FLOAT16, FLOAT32, TEXT, VISION_ENCODER
from qwen_export.errors import CheckpointError
from qwen_export.model_config import ModelConfig

if TYPE_CHECKING:
    from qwen_export.checkpoint.snapshot import TensorInfo

_FLOATS = (BFLOAT16, FLOAT16, FLOAT32)


def check_tensors(
    config: ModelConfig, tensors: dict[str, TensorInfo], components: Iterable[str], folder: Path, source: Path
) -> None:
    """Raise `CheckpointError` unless every tensor of `components` is there, fits, and no tensor is left over.

    Args:
        source: the file that lists the tensors (index or weight file), named when one is missing.
    """
    components = tuple(components)
    _check_vision(config, tensors, components, folder)
    known = expected_tensors(config, (*components_of(config), TEXT))
    wanted = expected_tensors(config, components)
    extra = [info for key, info in tensors.items() if key not in known]
    for key in wanted:
        if key not in tensors:
            raise CheckpointError(_missing(key, config, tensors, extra, source))
    for key, shape in known.items():
        if key in tensors:
            _check_tensor(tensors[key], key, shape)
    if extra:
        raise CheckpointError(_left_over(extra, known, tensors, config))


def _check_vision(
    config: ModelConfig, tensors: dict[str, TensorInfo], components: tuple[str, ...], folder: Path
) -> None:
    if VISION_ENCODER not in components:
        return
    command = f"`qwen-export text --checkpoint {folder} --output PACKAGE`"
    if config.vision is None:
        raise CheckpointError(
            f"{folder} is a text-only checkpoint (config.json has no vision_config). Export it with {command}."
        )
    if not any(key.startswith(VISUAL_PREFIX) for key in tensors):
        raise CheckpointError(
            f"{folder} says it is a vision-language model but holds no vision tensor ({VISUAL_PREFIX}*). "
            f"Export its language model with {command}."
        )


def _missing(
    key: str, config: ModelConfig, tensors: dict[str, TensorInfo], extra: list[TensorInfo], source: Path
) -> str:
    if key == HEAD_KEY:
        advice = "The config says that the head is not tied to the embedding (tie_word_embeddings false), so it must"
        return (
            f"Tensor {key} is missing: {source} does not list it. {advice} be there; check the config, or the download."
        )
    similar = _similar(key, [info.raw_key for info in extra]) or _similar(key, [i.raw_key for i in tensors.values()])
    names = f" Similar names there: {', '.join(similar)}." if similar else ""
    return f"Tensor {key} is missing: {source} does not list it.{names} Download it again, or rename the tensor."


def _check_tensor(info: TensorInfo, key: str, shape: tuple[int, ...]) -> None:
    if info.shape != shape:
        raise CheckpointError(
            f"Tensor {info.raw_key} in {info.file} has shape {list(info.shape)}, but config.json asks for "
            f"{list(shape)}. Weights and config are of different models."
        )
    if info.dtype not in _FLOATS:
        raise CheckpointError(
            f"Tensor {info.raw_key} in {info.file} is {info.dtype}; only {', '.join(_FLOATS)} are read. "
            "Export from the original checkpoint."
        )


def _left_over(extra: list[TensorInfo], known: Shapes, tensors: dict[str, TensorInfo], config: ModelConfig) -> str:
    first = extra[0]
    more = f" (and {len(extra) - 1} more)" if len(extra) > 1 else ""
    if config.vision is None and first.key.startswith(VISUAL_PREFIX):
        return (
            f"Tensor {first.raw_key} in {first.file}{more} belongs to a vision tower, but config.json has no "
            "vision_config. Use the config.json of the vision-language model."
        )
    similar = _similar(first.key, [key for key in known if key not in tensors] or list(known))
    names = f" Similar names that are known: {', '.join(similar)}." if similar else ""
    return (
        f"Tensor {first.raw_key} in {first.file}{more} is used by no graph and is not on the skip list (mtp.*).{names} "
        "Exporting without it could give wrong answers; check that config.json belongs to these weights."
    )


def _similar(key: str, names: list[str]) -> list[str]:
    """Up to three names that look like it. The closest of a thousand keys of one pattern differ in a digit or two."""
    return get_close_matches(key, names, n=3, cutoff=0.8)
