"""Commands that look at packages and judge them: audit, inspect, diff. None imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qwen_export.cli import options as opt
from qwen_export.cli.outcome import Outcome
from qwen_export.cli.progress import ProgressDisplay
from qwen_export.cli.tables import audit_tables, diff_lines, inspection_tables


def audit(
    package: opt.Package,
    graph_only: opt.AllowGraphOnly = False,
    deep: opt.Deep = False,
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
) -> Outcome:
    """Judge a package: standard operators only, whole, and as the contract says."""
    from qwen_export import audit

    with ProgressDisplay() as progress:
        report = audit(package, graph_only=graph_only, deep=deep, progress=progress)
    return Outcome(report, audit_tables(report), passed=report.ok)


def inspect(
    path: Annotated[str, typer.Argument(metavar="CHECKPOINT|PKG", help="Checkpoint or package.", show_default=False)],
    revision: opt.Revision = None,
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
) -> Outcome:
    """Show what is in a checkpoint or a package: sizes, operators, contract."""
    from qwen_export import inspect

    inspection = inspect(path, revision=revision)
    return Outcome(inspection, inspection_tables(inspection, every_state=verbose))


def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="Package.", show_default=False)],
    second: Annotated[Path, typer.Argument(metavar="B", help="Package to compare with it.", show_default=False)],
    deep: opt.Deep = False,
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
) -> Outcome:
    """Compare two packages; exit code 1 when they differ."""
    from qwen_export import diff

    report = diff(first, second, deep=deep)
    return Outcome(report, diff_lines(report), passed=report.same)
