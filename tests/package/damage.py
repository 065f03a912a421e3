"""Edits of a package's files, with a manifest that fits them, so that only the edit itself is wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import onnx

from qwen_export.package import AuditReport
from qwen_export.package.manifest import MANIFEST

DECODER = "decoder/model.onnx"


def change_graph(package: Path, change: Callable[[onnx.ModelProto], object], file: str = DECODER) -> None:
    """Edit a graph and make the manifest fit, so that only the edit itself is wrong."""
    model = onnx.ModelProto.FromString((package / file).read_bytes())
    change(model)
    (package / file).write_bytes(model.SerializeToString())
    refresh(package, file)


def change_manifest(package: Path, change: Callable[[dict], object]) -> None:
    document = json.loads((package / MANIFEST).read_text(encoding="utf-8"))
    change(document)
    (package / MANIFEST).write_text(json.dumps(document), encoding="utf-8")


def refresh(package: Path, file: str) -> None:
    """Record a file's new size and hash."""
    content = (package / file).read_bytes()
    record = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    change_manifest(package, lambda document: document["files"].__setitem__(file, record))


def rules(report: AuditReport) -> set[str]:
    return {finding.rule for finding in report.findings}
