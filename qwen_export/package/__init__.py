"""Packages: writing one whole or not at all, opening it, and judging what is in it."""

from qwen_export.package.audit import AuditReport, Finding, audit
from qwen_export.package.bind import bind
from qwen_export.package.diff import Difference, DiffReport, Severity, diff
from qwen_export.package.diff_markdown import diff_markdown
from qwen_export.package.extend import add_metadata_files
from qwen_export.package.fingerprint import Fingerprint, baseline
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
    "Fingerprint",
    "Inspection",
    "Manifest",
    "Package",
    "Severity",
    "add_metadata_files",
    "audit",
    "baseline",
    "bind",
    "diff",
    "diff_markdown",
    "inspect",
    "open_package",
]
