"""Reading checkpoint tensors with plain reads, and hashing their bytes.

Plain reads and no memory map: a shard that is cut short meanwhile is then an error with a name, not a crash.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from qwen_export.errors import CheckpointError
from qwen_export.weights.evaluate import DTYPES

if TYPE_CHECKING:
    from qwen_export.checkpoint import TensorInfo

HASH_PIECE = 1 << 22


class ShardReader:
    """Open shards of one thread. Each read says which tensor it is for, so that errors can name it."""

    def __init__(self) -> None:
        self._open: dict[Path, io.FileIO] = {}

    def __enter__(self) -> ShardReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every shard."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def read(self, info: TensorInfo, start: int, target: memoryview) -> None:
        """Fill `target` with the tensor's bytes from byte `start` of the tensor on."""
        try:
            if info.file not in self._open:
                self._open[info.file] = open(info.file, "rb", buffering=0)  # noqa: SIM115 (closed by close)
            file = self._open[info.file]
            file.seek(info.start + start)
            while target:
                got = file.readinto(target)
                if not got:
                    raise CheckpointError(
                        f"{info.file} ends inside tensor {info.raw_key}. It was cut short while it was read; "
                        "download it again."
                    )
                target = target[got:]
        except OSError as error:
            raise CheckpointError(
                f"{info.file} cannot be read at tensor {info.raw_key}: {error.strerror or error}. Check the file."
            ) from None

    def rows(self, info: TensorInfo, first: int, count: int, columns: int, buffer: np.ndarray) -> np.ndarray:
        """Rows of a tensor seen as [rows, columns], read into the front of `buffer` (uint8)."""
        dtype = DTYPES[info.dtype]
        width = columns * dtype.itemsize
        raw = buffer[: count * width]
        self.read(info, first * width, raw.data)
        return raw.view(dtype).reshape(count, columns)

    def sha256(self, info: TensorInfo, buffer: np.ndarray) -> str:
        """SHA-256 of a tensor's bytes as they lie in the file, read through `buffer` (uint8)."""
        digest = hashlib.sha256()
        total = info.stop - info.start
        for start in range(0, total, buffer.size):
            piece = buffer[: total - start].data
            self.read(info, start, piece)
            digest.update(piece)
        return digest.hexdigest()


def tensor_sha256(info: TensorInfo) -> str:
    """SHA-256 of one checkpoint tensor's bytes, as the manifest records it."""
    with ShardReader() as reader:
        return reader.sha256(info, np.empty(HASH_PIECE, np.uint8))


class UnchangedFiles:
    """Notices a shard that was replaced or rewritten between two moments."""

    def __init__(self, files: set[Path]) -> None:
        self._before = {file: _identity(file) for file in sorted(files)}

    def check(self) -> None:
        """Refuse if any of the files is not what it was."""
        for file, before in self._before.items():
            now = _identity(file)
            if now != before:
                what = "vanished" if now is None else "changed"
                raise CheckpointError(
                    f"{file} {what} while it was read, so the weights may mix two versions. "
                    "Run the command again when nothing writes to the checkpoint."
                )


def _identity(file: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
