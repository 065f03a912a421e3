"""Change a package that exists: replace one component, or add metadata files. The rest is taken over unchanged.

The new package is built whole beside the old one, with hard links to the files that stay, and swapped in; so the
manifest always fits what is there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from qwen_export.checkpoint import ASSET_FILES
from qwen_export.errors import UsageError
from qwen_export.package.manifest import MANIFEST, FileRecord, Manifest, is_plain_path, write_manifest
from qwen_export.package.open import Package, open_package
from qwen_export.package.stage import Staging, staged
from qwen_export.package.write import ExportResult, Stages, audit_staged, file_record
from qwen_export.weights import Progress


def keep_files(staging: Staging, package: Package, without: Collection[str]) -> dict[str, FileRecord]:
    """Take a package's files over into the staging folder, all but some. Returns their records."""
    kept = {path: record for path, record in package.manifest.files.items() if path not in without}
    for path in kept:
        staging.keep(package.folder / path, path)
    return kept


def component_files(manifest: Manifest, component: str) -> set[str]:
    """Files that belong to one component."""
    record = manifest.components.get(component)
    return {*record.graphs, record.data} if record else set()


def add_metadata_files(
    package: str | Path, files: Mapping[str, bytes], *, progress: Progress | None = None
) -> ExportResult:
    """Add small files to a package, or replace those of the same name. Graphs and weights stay as they are.

    Args:
        files: path in the package -> content, for instance `genai_config.json`. The checkpoint's own files stay.
    """
    stages = Stages(progress)
    opened = open_package(package)
    for name in files:
        if not is_plain_path(name) or not name.endswith((".json", ".jinja")) or name in (MANIFEST, *ASSET_FILES):
            raise UsageError(f"{name} cannot be added to a package: metadata are .json and .jinja files of their own.")
    with staged(opened.folder, overwrite=True) as staging:
        stages.begin("metadata", ", ".join(files))
        kept = keep_files(staging, opened, without=set(files))
        for name, content in files.items():
            target = staging.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        records = {**kept, **{name: file_record(staging.folder / name) for name in files}}
        manifest = replace(opened.manifest, files=dict(sorted(records.items())))
        write_manifest(staging.folder, manifest)
        report = audit_staged(staging)
        staging.swap()
        stages.end()
        return ExportResult(staging.output, manifest, report, stages.seconds)
