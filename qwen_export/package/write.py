"""Complete a package in its staging folder: assets, weights, manifest, audit, swap. Every verb that writes uses it."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from qwen_export.checkpoint import ASSET_FILES, Snapshot
from qwen_export.errors import CheckpointError, InternalError
from qwen_export.package.audit import AuditReport, audit
from qwen_export.package.audit.files import NEEDED_ASSETS
from qwen_export.package.manifest import (
    MANIFEST,
    PRESENT,
    FileRecord,
    Manifest,
    TensorRecord,
    write_manifest,
)
from qwen_export.package.places import listing
from qwen_export.package.stage import MARKER, Staging
from qwen_export.weights import DataFile, Progress, Streamed, plan_layout, stream, working_memory

_MANIFEST_ROOM = 1 << 20
"""Room asked for beside weights and assets; the graphs are there already."""


@dataclass(frozen=True)
class ExportResult:
    """What an export left.

    Attributes:
        seconds: wall time per stage.
    """

    package: Path
    manifest: Manifest
    report: AuditReport
    seconds: dict[str, float] = field(default_factory=dict)


class Stages:
    """Tells the caller which step begins, and times the steps."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress
        self.seconds: dict[str, float] = {}
        self._name, self._since = "", time.perf_counter()

    def begin(self, name: str, detail: str = "") -> None:
        """End the running step and begin another."""
        self.end()
        self._name, self._since = name, time.perf_counter()
        if self.progress:
            self.progress.stage(f"{name}: {detail}" if detail else name)

    def end(self) -> None:
        """End the running step."""
        if self._name:
            spent = time.perf_counter() - self._since
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + spent
        self._name = ""


def data_files(folder: Path, manifest: Manifest, components: Sequence[str]) -> list[DataFile]:
    """The external data files of some components, as `stream` takes them."""
    records = [manifest.components[name] for name in components]
    return [
        DataFile(folder / record.data, record.bindings, plan_layout(record.bindings))
        for record in records
        if record.bindings
    ]


def complete(
    staging: Staging,
    draft: Manifest,
    *,
    assets: Mapping[str, Path | bytes],
    snapshot: Snapshot | None,
    components: Sequence[str],
    stages: Stages,
    kept: Mapping[str, FileRecord] | None = None,
    allow_not_finite: bool = False,
) -> ExportResult:
    """Turn a staging folder that holds the graphs into the finished package.

    Args:
        draft: the manifest, still without files and tensor hashes.
        assets: asset name -> file to copy, or its content.
        snapshot: where weights come from; None for a graph-only package.
        components: those whose weights are written now.
        kept: records of files already in the staging folder, taken over unchanged.
        allow_not_finite: keep weights with NaN or infinity and say so in the manifest, instead of refusing them.
    """
    kept = kept or {}
    weights = sum(file.layout.size for file in data_files(staging.folder, draft, components)) if snapshot else 0
    contents = {name: asset if isinstance(asset, bytes) else read_asset(name, asset) for name, asset in assets.items()}
    staging.need(weights + sum(map(len, contents.values())) + _MANIFEST_ROOM)
    for name, content in contents.items():
        (staging.folder / name).write_bytes(content)
    hashes: dict[str, str] = {}
    if snapshot is not None:
        streamed = _stream(staging, draft, snapshot, components, stages, allow_not_finite)
        hashes = {file.relative_to(staging.folder).as_posix(): sha for file, sha in streamed.file_sha256.items()}
        written = _tensor_records(snapshot, streamed)
        _check_shared(draft, written, components)
        tensors = {**draft.checkpoint.tensors, **written}
        draft = replace(
            draft,
            weights=PRESENT,
            checkpoint=replace(draft.checkpoint, tensors=dict(sorted(tensors.items()))),
            warnings=(*draft.warnings, *streamed.not_finite),
        )
    stages.begin("audit")
    files = {
        path: kept.get(path) or file_record(staging.folder / path, hashes.get(path))
        for path in listing(staging.folder)
        if path not in (MARKER, MANIFEST)
    }
    missing = tuple(name for name in NEEDED_ASSETS if name not in files)
    manifest = replace(draft, files=dict(sorted(files.items())), missing_assets=missing)
    write_manifest(staging.folder, manifest)
    report = audit_staged(staging)
    staging.swap()
    stages.end()
    return ExportResult(staging.output, manifest, report, stages.seconds)


def audit_staged(staging: Staging) -> AuditReport:
    """Audit a package before the swap. A finding here is a fault of ours."""
    (staging.folder / MARKER).unlink()
    report = audit(staging.folder, graph_only=True)
    (staging.folder / MARKER).touch()
    if not report.ok:
        more = f" (and {len(report.findings) - 1} more)" if len(report.findings) > 1 else ""
        raise InternalError(f"The package fails its own audit, so nothing was written: {report.findings[0]}{more}")
    return report


def read_asset(name: str, source: Path) -> bytes:
    """Read an asset, byte for byte. Only named ones; a link must stay inside the checkpoint or its hub cache."""
    if name not in ASSET_FILES:
        raise InternalError(f"{name} is not on the list of assets.")
    _check_link(source)
    try:
        return source.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{source} cannot be read: {error.strerror}.") from None


def _check_link(source: Path) -> None:
    real, home = source.resolve(), source.parent.resolve()
    allowed = [home]
    if home.parent.name == "snapshots":
        allowed.append(home.parent.parent / "blobs")
    if not any(folder in real.parents for folder in allowed):
        raise CheckpointError(
            f"{source} is a link to a file outside the checkpoint. It is not copied; put the file itself there."
        )


def file_record(file: Path, sha256: str | None = None) -> FileRecord:
    """Size and SHA-256 of a file; the hash may be known already."""
    if sha256 is None:
        with open(file, "rb") as handle:
            sha256 = hashlib.file_digest(handle, "sha256").hexdigest()
    return FileRecord(file.stat().st_size, sha256)


def _stream(
    staging: Staging,
    draft: Manifest,
    snapshot: Snapshot,
    components: Sequence[str],
    stages: Stages,
    allow_not_finite: bool,
) -> Streamed:
    files = data_files(staging.folder, draft, components)
    total = sum(file.layout.size for file in files)
    free = shutil.disk_usage(staging.folder).free
    memory = working_memory(files)
    stages.begin("weights", f"{total:,} bytes to write, {free:,} free; about {memory >> 20} MiB of memory")
    return stream(files, snapshot, progress=stages.progress, allow_not_finite=allow_not_finite)


def _check_shared(draft: Manifest, written: dict[str, TensorRecord], components: Sequence[str]) -> None:
    """Refuse to mix checkpoints in a re-export: a tensor that a kept component also uses must be the same one."""
    for name, record in draft.components.items():
        if name in components:
            continue
        for key in dict.fromkeys(key for binding in record.bindings.values() for key in binding.tensors):
            before = draft.checkpoint.tensors.get(key)
            if key in written and before is not None and before != written[key]:
                raise CheckpointError(
                    f"Tensor {key} of this checkpoint has other values than the one that the package's {name} was made "
                    "of. Export the whole package again with --overwrite."
                )


def _tensor_records(snapshot: Snapshot, streamed: Streamed) -> dict[str, TensorRecord]:
    infos = {key: snapshot.tensors[key] for key in streamed.tensor_sha256}
    return {
        key: TensorRecord(info.dtype, tuple(info.shape), streamed.tensor_sha256[key]) for key, info in infos.items()
    }
