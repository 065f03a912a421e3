"""Where a package may be written, and what may be replaced. Nothing of the user's is ever lost to `--overwrite`."""

from __future__ import annotations

import os
from pathlib import Path

from qwen_export.errors import PackageError, UsageError
from qwen_export.package.manifest import MANIFEST, holds_manifest, read_manifest


def check_output(output: Path, *, overwrite: bool, checkpoint: Path | None = None) -> None:
    """Raise `UsageError` with the reason unless a package may be written at `output`.

    Args:
        output: absolute path.
        overwrite: a package of ours that is there already may be replaced.
        checkpoint: folder of the source; neither it nor a folder above or below it may be written.
    """
    if not output.name:
        raise UsageError(f"{output} is the root of a file system, not a place for a package. Choose another --output.")
    if output.is_symlink():
        raise UsageError(
            f"{output} is a symbolic link. Name the folder it should lead to, or remove the link, and run again."
        )
    _refuse_protected(output, checkpoint)
    _check_parent(output)
    if not output.exists():
        return
    if not output.is_dir():
        raise UsageError(f"{output} is a file. Choose another --output.")
    if not holds_manifest(output):
        raise UsageError(
            f"{output} exists and is not a package of qwen-export, so it is not touched, with --overwrite or without. "
            "Choose another --output."
        )
    if not overwrite:
        raise UsageError(f"{output} already holds a package. Add --overwrite to replace it, or choose another place.")
    foreign = foreign_files(output)
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise UsageError(
            f"{output} holds {foreign[0]}{more}, which no export wrote, and --overwrite would lose it. "
            "Move it away and run again."
        )


def foreign_files(folder: Path) -> list[str]:
    """Files and links in a package folder that its manifest does not list, as POSIX paths."""
    try:
        known = {MANIFEST, *read_manifest(folder).files}
    except PackageError:
        known = {MANIFEST}
    return [path for path in listing(folder) if path not in known]


def listing(folder: Path) -> list[str]:
    """Every file, link and empty folder below a folder, as sorted POSIX paths. Links are not followed."""
    found = []
    for root, folders, files in os.walk(folder):
        here = Path(root)
        links = [name for name in folders if (here / name).is_symlink()]
        folders[:] = [name for name in folders if name not in links]
        found += [(here / name).relative_to(folder).as_posix() for name in (*files, *links)]
        if not folders and not files and not links and here != folder:
            found.append(here.relative_to(folder).as_posix() + "/")
    return sorted(found)


def _refuse_protected(output: Path, checkpoint: Path | None) -> None:
    real = output.resolve()
    if checkpoint is not None:
        for source in {checkpoint.absolute(), checkpoint.resolve()}:
            if real == source:
                raise UsageError(f"{output} is the checkpoint itself. Choose another --output.")
            if real in source.parents:
                raise UsageError(f"{output} is a folder above the checkpoint {checkpoint}. Choose another --output.")
            if source in real.parents:
                raise UsageError(f"{output} lies inside the checkpoint {checkpoint}. Choose another --output.")
    if os.path.ismount(real):
        raise UsageError(f"{output} is a mount point and cannot be swapped for a new folder. Name a folder inside it.")
    for what, place in (("your home folder", _home()), ("the current folder", Path.cwd().resolve())):
        if place is not None and (real == place or real in place.parents):
            above = "" if real == place else "a folder above "
            raise UsageError(f"{output} is {above}{what}. Choose another --output.")


def _home() -> Path | None:
    try:
        return Path.home().resolve()
    except RuntimeError:
        return None


def _check_parent(output: Path) -> None:
    parent = output.parent
    while not parent.exists() and not parent.is_symlink():
        parent = parent.parent
    if not parent.is_dir():
        raise UsageError(f"{output} cannot be written: {parent} is not a folder. Choose another --output.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(f"{output} cannot be written: no permission to write in {parent}. Choose another --output.")
