"""One export at a time into one output: an operating-system lock on a file beside it.

The lock goes with its process, however that ends, so a lock that can be taken has no holder any more.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from types import TracebackType

from qwen_export.errors import UsageError

_BUSY = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
_WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


def lock_file(output: Path) -> Path:
    """Where the lock of a package folder lies."""
    return output.with_name(f".{output.name}.lock")


class OutputLock:
    """Holds the lock of a package folder for the length of a block. Refuses at once if somebody else holds it."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.path = lock_file(output)
        self._descriptor = -1

    def __enter__(self) -> OutputLock:
        while True:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                _lock(self._descriptor)
            except OSError as error:
                os.close(self._descriptor)
                if error.errno not in _BUSY:
                    raise
                raise UsageError(
                    f"Another qwen-export is writing {self.output} at this moment. "
                    "Wait for it, or choose another --output."
                ) from None
            if _is_same_file(self._descriptor, self.path):
                return self
            os.close(self._descriptor)  # the last holder removed the file between our open and our lock

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # removed while still held, so that nobody can lock a file that is about to vanish unseen
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        os.close(self._descriptor)
        if os.name == "nt":  # removes no open file: neither ours before, nor here that of a next holder
            with contextlib.suppress(OSError):
                os.unlink(self.path)


def _lock(descriptor: int) -> None:
    try:
        import fcntl
    except ImportError:
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # some network file systems have no locks; two exports are not kept apart there
        if error.errno not in _WITHOUT_LOCKS:
            raise


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)
