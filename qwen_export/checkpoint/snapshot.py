"""A checkpoint on disk: its config, where each tensor lies, and the files beside the weights. No data is read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np

from qwen_export.checkpoint.check import check_tensors
from qwen_export.checkpoint.inventory import EMBED_KEY, HEAD_KEY, MTP_PREFIX
from qwen_export.checkpoint.keys import canonical_key
from qwen_export.checkpoint.locate import ASSET_FILES, find_folder, revision_of
from qwen_export.checkpoint.prequantised import refuse_quantised_config, refuse_quantised_tensors
from qwen_export.checkpoint.shards import find_weight_files, read_weight_files
from qwen_export.errors import CheckpointError
from qwen_export.model_config import ModelConfig, read_config

_NUMPY = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16), "float32": np.dtype(np.float32)}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of the checkpoint."""

    key: str
    """Canonical key, as in the official vision-language layout."""
    raw_key: str
    """Key as the file spells it."""
    file: Path
    dtype: str
    """Tensor dtype: bfloat16, float16, float32, ..."""
    shape: tuple[int, ...]
    start: int
    stop: int
    """Byte range in the file."""

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.stop - self.start


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint folder as it was when it was opened."""

    folder: Path
    config: ModelConfig
    tensors: dict[str, TensorInfo]
    """Canonical key -> tensor. With a tied head, `lm_head.weight` is the embedding's bytes under its own key."""
    skipped: tuple[str, ...]
    """Raw keys that no graph uses, by name: `mtp.*`."""
    assets: dict[str, Path]
    """File name -> path, for those of `ASSET_FILES` that exist."""
    weight_files: tuple[Path, ...]
    source: Path
    """The file that lists the tensors: the index, the single weight file, or the first shard."""
    revision: str | None
    """Commit hash, where the hub cache names one."""
    config_sha256: str

    def array(self, key: str) -> np.ndarray:
        """The tensor as a read-only memory map; bfloat16 as `ml_dtypes.bfloat16`."""
        info = self.tensors.get(key)
        if info is None:
            raise CheckpointError(f"{self.source} lists no tensor {key}.")
        if info.dtype not in _NUMPY:
            raise CheckpointError(f"Tensor {info.raw_key} in {info.file} is {info.dtype}, which is not read.")
        return np.memmap(info.file, dtype=_NUMPY[info.dtype], mode="r", offset=info.start, shape=info.shape)

    def check(self, components: Iterable[str]) -> None:
        """Raise `CheckpointError` unless these components can be made of this checkpoint.

        Every tensor they need is there with the right shape and a plain float dtype, and every tensor that is there
        is used by some component of the model or on the skip list.
        """
        check_tensors(self.config, self.tensors, components, self.folder, self.source)


def open_snapshot(checkpoint: str | Path, *, revision: str | None = None) -> Snapshot:
    """Open a checkpoint: a folder, or a hub id (`OWNER/NAME`) that is downloaded or found in the local cache."""
    folder = find_folder(checkpoint, revision)
    refuse_quantised_config(folder)
    config = read_config(folder)
    weights = find_weight_files(folder)
    stored = read_weight_files(weights)
    tensors: dict[str, TensorInfo] = {}
    skipped = []
    for file, tensor in stored:
        key = canonical_key(tensor.raw_key)
        if key.startswith(MTP_PREFIX):
            skipped.append(tensor.raw_key)
            continue
        info = TensorInfo(key, tensor.raw_key, file, tensor.dtype, tensor.shape, tensor.start, tensor.stop)
        if key in tensors:
            raise CheckpointError(
                f"{tensors[key].raw_key} in {tensors[key].file} and {info.raw_key} in {file} are both {key}. "
                "Keep one of them."
            )
        tensors[key] = info
    refuse_quantised_tensors((info.raw_key, info.dtype, info.file) for info in tensors.values())
    if config.tie_word_embeddings:
        _tie(tensors)
    return Snapshot(
        folder=folder,
        config=config,
        tensors=tensors,
        skipped=tuple(sorted(skipped)),
        assets={name: folder / name for name in ASSET_FILES if (folder / name).is_file()},
        weight_files=weights.files,
        source=weights.source,
        revision=revision_of(folder),
        config_sha256=hashlib.sha256((folder / "config.json").read_bytes()).hexdigest(),
    )


def _tie(tensors: dict[str, TensorInfo]) -> None:
    """Give the absent one of embedding and head the other's bytes. Where both are there, upstream keeps both."""
    for absent, present in ((HEAD_KEY, EMBED_KEY), (EMBED_KEY, HEAD_KEY)):
        if absent not in tensors and present in tensors:
            tensors[absent] = replace(tensors[present], key=absent)
