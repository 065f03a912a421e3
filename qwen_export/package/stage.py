"""Write a package beside its place and swap it in whole.

The new package grows in the sibling folder `.PKG.new-*` under the lock `.PKG.lock`. Two renames put it in place: `PKG`
becomes `.PKG.old`, the new folder becomes `PKG`; then the old one is removed. Killed at any moment, this leaves either
the earlier package, or the new one, or `.PKG.old` alone, which the next command puts back. What a killed export left
behind is removed by the next one, with a notice.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from qwen_export.errors import UsageError
from qwen_export.package.lock import OutputLock, lock_file
from qwen_export.package.manifest import holds_manifest
from qwen_export.package.places import check_output

LOG = logging.getLogger("qwen_export")
MARKER = ".qwen-export"
"""File that marks a folder as being built or being removed."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ENAMETOOLONG, errno.ENODEV)


class Staging:
    """A package being built.

    Attributes:
        folder: where its files go now.
        output: where the package will be.
    """

    def __init__(self, folder: Path, output: Path) -> None:
        self.folder = folder
        self.output = output
        self.needed = 0

    def need(self, num_bytes: int) -> None:
        """Refuse before the first byte unless the file system has room. The earlier package stays until the swap."""
        self.needed = num_bytes
        free = shutil.disk_usage(self.folder).free
        if num_bytes > free:
            raise UsageError(_no_space(self.output, num_bytes, free))

    def keep(self, file: Path, path: str) -> None:
        """Take a file of an earlier package over unchanged: by hard link, or by copy where links fail."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, target)
        except OSError:
            shutil.copyfile(file, target)

    def swap(self) -> None:
        """Put the finished package in place."""
        old = old_folder(self.output)
        (self.folder / MARKER).unlink()
        replaces = self.output.exists()
        try:
            if replaces:
                os.replace(self.output, old)
            os.replace(self.folder, self.output)
        except BaseException:
            if replaces and not self.output.exists():
                os.replace(old, self.output)
            raise
        if replaces:
            remove(old)


@contextlib.contextmanager
def staged(output: Path, *, overwrite: bool, checkpoint: Path | None = None) -> Iterator[Staging]:
    """Check the place, lock it, tidy up after killed exports, and hand out a staging folder.

    The folder is removed on every way out but `Staging.swap`. Writing errors become one sentence that names the place.
    """
    output = absolute(output)
    staging = Staging(output, output)
    made: list[Path] = []
    try:
        check_output(output, overwrite=overwrite, checkpoint=checkpoint)
        made += _make_parents(output.parent)
        with OutputLock(output):
            recover(output)
            check_output(output, overwrite=overwrite, checkpoint=checkpoint)
            staging.folder = _new_folder(output)
            try:
                yield staging
            finally:
                if staging.folder.exists():
                    remove(staging.folder)
    except OSError as error:
        sentence = _explain(error, staging)
        if sentence is None:
            raise
        raise UsageError(sentence) from error
    finally:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()


def absolute(output: Path) -> Path:
    """The absolute path of an output: links in its parents are followed, the last name is taken as it is."""
    if "\0" in str(output):
        raise UsageError(f"{str(output)!r} is no path. Choose another.")
    output = Path.cwd() / Path(output).expanduser()
    if output.name in ("", ".."):
        return output.resolve()
    return output.parent.resolve() / output.name


def old_folder(output: Path) -> Path:
    """Where the earlier package waits during a swap."""
    return output.with_name(f".{output.name}.old")


def recover(output: Path) -> None:
    """Undo what a killed command left beside `output`. Only under the lock."""
    old = old_folder(output)
    if old.exists():
        if not _is_ours(old):
            raise UsageError(f"{old} is in the way and is not a package of ours. Move it away and run again.")
        if output.exists():
            remove(old)
            LOG.warning("Removed %s, left behind by an interrupted command.", old)
        else:
            os.replace(old, output)
            LOG.warning("Put %s back: a command was interrupted while it replaced the package.", output)
    for leftover in sorted(output.parent.glob(f".{glob.escape(output.name)}.new-*")):
        if leftover.is_dir() and not leftover.is_symlink() and _is_ours(leftover):
            remove(leftover)
            LOG.warning("Removed %s, left behind by an interrupted command.", leftover)


def settle(output: Path) -> None:
    """What a reading command does first: put a package back that an interrupted swap took away, tidy up beside it."""
    if not old_folder(output).exists():
        return
    try:
        with OutputLock(output):
            recover(output)
    except OSError:
        return  # a place that can only be read is left as it is
    except UsageError:
        if not output.exists():
            raise


def remove(folder: Path) -> None:
    """Remove a folder of ours; the marker goes last, so that a rest can be told from a folder of the user's."""
    marker = folder / MARKER
    marker.touch()
    for entry in sorted(folder.iterdir()):
        if entry == marker:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    marker.unlink()
    folder.rmdir()


def _is_ours(folder: Path) -> bool:
    return folder.is_dir() and ((folder / MARKER).exists() or not any(folder.iterdir()) or holds_manifest(folder))


def _new_folder(output: Path) -> Path:
    folder = output.with_name(f".{output.name}.new-{secrets.token_hex(4)}")
    folder.mkdir()
    (folder / MARKER).touch()
    return folder


def _make_parents(folder: Path) -> list[Path]:
    """Make missing folders; returns those made, innermost first."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
    return missing


def _explain(error: OSError, staging: Staging) -> str | None:
    if error.errno in _FULL:
        place = staging.output.parent
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free
        if error.errno == errno.EFBIG:
            return (
                f"{staging.output} cannot be written: a file grew beyond the limit on file sizes (ulimit -f, or the "
                f"file system's); the package needs {staging.needed:,} bytes, {free:,} are free. Raise the limit."
            )
        return _no_space(staging.output, staging.needed, free)
    if error.errno in _REFUSED or _is_about(error, staging):
        at = f" at {error.filename}" if error.filename else ""
        reason = f"{staging.output} cannot be written: {error.strerror}{at}."
        return f"{reason} Check the folder, or choose another --output."
    return None


def _is_about(error: OSError, staging: Staging) -> bool:
    """Whether an error names a place that we write, or a folder above it."""
    if not isinstance(error.filename, str | os.PathLike):
        return False
    place = Path(error.filename)
    written = (staging.folder, staging.output, lock_file(staging.output), old_folder(staging.output))
    return place in staging.output.parents or any(place == own or own in place.parents for own in written)


def _no_space(output: Path, needed: int, free: int) -> str:
    return (
        f"{output} cannot be written: it needs {needed:,} bytes and {free:,} are free there (an earlier package stays "
        "until the new one is whole). Make room, or choose another --output."
    )
