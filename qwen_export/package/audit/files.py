"""The folder holds what the manifest lists and nothing else: regular files of the listed sizes (deep: and contents)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from qwen_export.checkpoint import ASSET_FILES
from qwen_export.package.audit.report import Finding
from qwen_export.package.manifest import MANIFEST, Manifest
from qwen_export.package.places import listing

SUFFIXES = (".onnx", ".data", ".json", ".jinja", ".txt")
NEEDED_ASSETS = ASSET_FILES[:7]
"""The assets that every complete checkpoint has; the others are carried on where they exist."""
_PIECE = 1 << 24


def check_files(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    """Findings on the folder against the manifest; no content is read."""
    there = listing(folder)
    for path in there:
        file = folder / path
        if file.is_symlink():
            yield Finding("link", "is a symbolic link; a package holds regular files only.", path)
        elif path.lower().endswith((".py", ".pyc", ".pyw")):
            yield Finding("code", "is code; a package never holds any.", path)
        elif path != MANIFEST and path not in manifest.files:
            yield Finding("unlisted", "is not in the manifest; left over from another export, or foreign.", path)
    for path, record in manifest.files.items():
        file = folder / path
        if path not in there or not file.is_file():
            yield Finding("missing", "is in the manifest but not in the folder.", path)
        elif file.stat().st_size != record.size:
            yield Finding("size", f"has {file.stat().st_size} bytes, the manifest says {record.size}.", path)
        if PurePosixPath(path).suffix not in SUFFIXES:
            yield Finding("kind", f"is no kind of file that a package holds ({', '.join(SUFFIXES)}).", path)
    for component, parts in manifest.components.items():
        for path in (*parts.graphs, *((parts.data,) if manifest.has_weights and parts.bindings else ())):
            if path not in manifest.files:
                yield Finding("manifest", f"the {component} needs this file, but the manifest does not list it.", path)
        if not manifest.has_weights and (parts.data in manifest.files or parts.data in there):
            yield Finding("manifest", "exists, although the manifest says that the weights are absent.", parts.data)


def check_contents(
    folder: Path, manifest: Manifest, report: Callable[[int, int, str], None] | None = None
) -> Iterator[Finding]:
    """Findings on contents against the manifest's hashes. Reads every byte, holds a few megabytes."""
    total = sum(record.size for record in manifest.files.values())
    done = 0
    for path, record in manifest.files.items():
        file = folder / path
        if not file.is_file() or file.is_symlink():
            continue
        digest = hashlib.sha256()
        with open(file, "rb") as handle:
            while piece := handle.read(_PIECE):
                digest.update(piece)
                done += len(piece)
                if report:
                    report(done, total, path)
        if digest.hexdigest() != record.sha256:
            yield Finding("hash", "its contents are not those that were written (SHA-256 differs).", path)
