"""Is this the checkpoint the package was made of, and are the package's files as they were written?

A wrong hash is a finding beside the others: the numbers are still compared.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path

from qwen_export.checkpoint import Snapshot
from qwen_export.errors import UsageError
from qwen_export.package import Package
from qwen_export.weights import tensor_sha256

SAMPLE = 64
"""Source tensors hashed without --deep; always the same ones for a package."""
PIECE = 1 << 22


@dataclass(frozen=True)
class Identity:
    """What was hashed and what differs."""

    files_checked: int
    tensors_checked: int
    tensors_known: int
    """Source tensors the manifest has a hash of."""
    wrong_files: tuple[str, ...] = ()
    wrong_tensors: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every hash is right."""
        return not self.wrong_files and not self.wrong_tensors

    @property
    def findings(self) -> list[str]:
        """One sentence for each wrong hash."""
        files = [f"{name} is not the file that was written: its SHA-256 differs" for name in self.wrong_files]
        return files + [f"checkpoint tensor {key} is not the one the package was made of" for key in self.wrong_tensors]


def check_identity(package: Package, snapshot: Snapshot | None, *, deep: bool = False) -> Identity:
    """Hash the package's files and source tensors.

    Args:
        snapshot: the checkpoint; None where only a saved reference is at hand.
        deep: hash every source tensor.

    Raises:
        UsageError: the checkpoint is not the package's at all: another config, other shapes, or most tensors differ.
    """
    records = package.manifest.checkpoint.tensors
    wrong = [
        name for name, record in package.manifest.files.items() if file_sha256(package.folder / name) != record.sha256
    ]
    keys: list[str] = []
    wrong_tensors: list[str] = []
    if snapshot is not None:
        _check_origin(package, snapshot)
        keys = sorted(records)
        if not deep and len(keys) > SAMPLE:
            keys = sorted(random.Random(0).sample(keys, SAMPLE))
        for key in keys:
            if tensor_sha256(snapshot.tensors[key]) != records[key].sha256:
                wrong_tensors.append(key)
        if len(wrong_tensors) * 2 > len(keys):
            raise UsageError(
                f"{snapshot.folder} is not the checkpoint that {package.folder} was made of: {len(wrong_tensors)} of "
                f"{len(keys)} tensors looked at have other bytes. Give the checkpoint the package came from."
            )
    return Identity(len(package.manifest.files), len(keys), len(records), tuple(wrong), tuple(wrong_tensors))


def file_sha256(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _check_origin(package: Package, snapshot: Snapshot) -> None:
    """Another model altogether is a mistake of the call, not a verdict on the package."""
    manifest = package.manifest.checkpoint
    if snapshot.config_sha256 != manifest.config_sha256:
        raise UsageError(
            f"{snapshot.folder} is not the checkpoint that {package.folder} was made of: its config.json is another "
            "one. Give the checkpoint the package came from."
        )
    for key, record in manifest.tensors.items():
        info = snapshot.tensors.get(key)
        if info is None or info.shape != record.shape or info.dtype != record.dtype:
            found = "is missing" if info is None else f"is {info.dtype} {list(info.shape)}"
            raise UsageError(
                f"{snapshot.folder} is not the checkpoint that {package.folder} was made of: {key} {found} there. "
                "Give the checkpoint the package came from."
            )
