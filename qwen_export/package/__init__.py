"""Packages: writing one whole or not at all, opening it, and judging what is in it."""

from qwen_export.package.audit import AuditReport, Finding, audit
from qwen_export.package.bind import bind
from qwen_export.package.diff import Difference, DiffReport, diff
from qwen_export.package.extend import add_metadata_files
from qwen_export.package.inspect import Inspection, inspect
from qwen_export.package.manifest import Manifest
from qwen_export.package.open import Package, open_package
from qwen_export.package.write import ExportResult

__all__ = [
    "AuditReport",
    "DiffReport",
    "Difference",
    "ExportResult",
    "Finding",
    "Inspection",
    "Manifest",
    "Package",
    "add_metadata_files",
    "audit",
    "bind",
    "diff",
    "inspect",
    "open_package",
]
