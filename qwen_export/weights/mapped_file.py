"""A data file of known size whose space is taken at once and whose bytes are written through a memory map.

Transposed weights are written in short runs all over their slot; through a map that costs a copy, through write calls
a system call each. The space is reserved first because a map cannot report a full disk.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import traceback
from pathlib import Path
from types import TracebackType

import numpy as np

_ZEROS = bytes(1 << 22)


class MappedFile:
    """A new file, writable as `bytes` (numpy, uint8) until the block ends."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size

    def __enter__(self) -> MappedFile:
        with open(self.path, "xb+", buffering=0) as file:
            reserve(file.fileno(), self.size)
            self._map = mmap.mmap(file.fileno(), self.size)
        self.bytes = np.frombuffer(self._map, np.uint8)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self.bytes
        # views that a failed job's frames still hold would keep the map, and on Windows the file, open
        traceback.clear_frames(trace)
        with contextlib.suppress(BufferError):
            self._map.close()


def reserve(descriptor: int, size: int) -> None:
    """Make a new file `size` bytes long with its space really taken. A full disk is an OSError here and not later."""
    allocate = getattr(os, "posix_fallocate", None)
    if allocate is not None:
        try:
            allocate(descriptor, 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    if os.name == "nt":  # NTFS takes the clusters when a file grows
        os.ftruncate(descriptor, size)
        return
    for start in range(0, size, len(_ZEROS)):
        left = memoryview(_ZEROS)[: size - start]
        while left:
            left = left[os.write(descriptor, left) :]
