"""Audit: is a package whole, standard-only and as the contract says? Judged on the saved files, read again.

Weights are never loaded; `deep` hashes every file against the manifest.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from qwen_export.checkpoint import ASSET_FILES
from qwen_export.errors import QwenExportError
from qwen_export.model_config import ModelConfig, read_config
from qwen_export.package.audit.external_data import check_external_data
from qwen_export.package.audit.files import NEEDED_ASSETS, check_contents, check_files
from qwen_export.package.audit.interface import check_interface
from qwen_export.package.audit.operators import check_operators, check_wiring, inventory
from qwen_export.package.audit.paths import check_graph_strings, check_text_file
from qwen_export.package.audit.report import AuditReport, Finding
from qwen_export.package.graphs import DECODE_GRAPH, expected_contract
from qwen_export.package.manifest import MANIFEST, ComponentRecord, Manifest, read_manifest
from qwen_export.package.stage import absolute, settle
from qwen_export.weights import Progress

__all__ = ["AuditReport", "Finding", "audit"]

MAX_GRAPH_BYTES = 1 << 31


def audit(
    package: str | Path, *, graph_only: bool = False, deep: bool = False, progress: Progress | None = None
) -> AuditReport:
    """Judge a package.

    Args:
        graph_only: a package without weight data may pass.
        deep: also compare every file's contents with the manifest's hashes.

    Raises:
        PackageError: there is no package, or its manifest cannot be read.
    """
    folder = absolute(Path(package))
    settle(folder)
    manifest = read_manifest(folder)
    findings = list(check_files(folder, manifest))
    if not manifest.has_weights and not graph_only:
        findings.append(
            Finding("graph-only", "the package holds no weights; bind gives it some, --graph-only accepts it so.")
        )
    config, problems = _config(folder)
    findings += problems
    inventories: dict[str, dict[str, int]] = {}
    for component, record in manifest.components.items():
        findings += _component(folder, component, record, manifest, config, inventories)
    texts = list(_texts(folder, manifest))
    findings += [entry for entry in texts if isinstance(entry, Finding)]
    if deep:
        findings += check_contents(folder, manifest, progress.count_bytes if progress else None)
    absent = [name for name in NEEDED_ASSETS if name not in manifest.files]
    notes = [f"missing asset: {name}" for name in absent] + [entry for entry in texts if isinstance(entry, str)]
    return AuditReport(
        tuple(dict.fromkeys(findings)), inventories, not manifest.has_weights, deep, (*notes, *manifest.warnings)
    )


def _config(folder: Path) -> tuple[ModelConfig | None, list[Finding]]:
    try:
        return read_config(folder), []
    except QwenExportError as error:
        return None, [Finding("config", str(error), "config.json")]


def _component(
    folder: Path,
    component: str,
    record: ComponentRecord,
    manifest: Manifest,
    config: ModelConfig | None,
    inventories: dict[str, dict[str, int]],
) -> Iterator[Finding]:
    models: dict[str, onnx.ModelProto] = {}
    for file, interface in record.graphs.items():
        try:
            models[file] = model = load_graph(folder / file)
        except (OSError, ValueError) as error:
            yield Finding("unreadable", f"cannot be read as an ONNX graph ({error}).", file)
            continue
        inventories[file] = inventory(model)
        yield from check_operators(file, model)
        yield from check_wiring(file, model)
        yield from check_graph_strings(file, model)
        if config is not None:
            try:
                contract = expected_contract(component, config, record.recipe, single_step=file == DECODE_GRAPH)
            except QwenExportError as error:
                yield Finding("contract", str(error), file)
                continue
            yield from check_interface(file, model, contract, interface)
    yield from check_external_data(folder, record, models, manifest.has_weights)


def load_graph(file: Path) -> onnx.ModelProto:
    """Read a graph file without its external data."""
    if file.stat().st_size >= MAX_GRAPH_BYTES:
        raise ValueError("it has 2 GiB or more")
    try:
        return onnx.ModelProto.FromString(file.read_bytes())
    except DecodeError:
        raise ValueError("it is damaged") from None


def _texts(folder: Path, manifest: Manifest) -> Iterator[Finding | str]:
    for path in (MANIFEST, *manifest.files):
        file = folder / path
        if path.endswith((".json", ".jinja", ".txt")) and file.is_file() and not file.is_symlink():
            yield from check_text_file(folder, path, ours=path not in ASSET_FILES)
