"""Commands that look at packages and judge them: audit, inspect, diff, baseline. None imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from qwen_export.cli import options as opt
from qwen_export.cli.outcome import Outcome
from qwen_export.cli.progress import ProgressDisplay
from qwen_export.cli.tables import audit_tables, diff_tables, fingerprint_tables, inspection_tables
from qwen_export.recipe import read_recipe


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
    layers: opt.Layers = False,
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
) -> Outcome:
    """Show what is in a checkpoint or a package: sizes, operators, contract."""
    from qwen_export import inspect

    inspection = inspect(path, revision=revision, layers=layers)
    return Outcome(inspection, inspection_tables(inspection, every_state=verbose))


def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="Package or baseline.", show_default=False)],
    second: Annotated[Path, typer.Argument(metavar="B", help="What to compare with it.", show_default=False)],
    fail_on: opt.FailOn = opt.Severity.wiring,
    form: opt.FormatOption = opt.ReportFormat.text,
    recipe: opt.ThresholdFile = None,
    deep: opt.Deep = False,
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
) -> Outcome:
    """Compare two packages or baselines, the most severe change first."""
    from qwen_export import diff
    from qwen_export.package import Severity, diff_markdown

    limits = read_recipe(recipe).thresholds if recipe else None
    with ProgressDisplay() as progress:
        report = diff(first, second, deep=deep, thresholds=limits, progress=progress)
    passed = not report.differences or report.severity < Severity[fail_on.value]
    if form is opt.ReportFormat.markdown:
        return Outcome(report, [Text(diff_markdown(report, f"{first.name} to {second.name}"))], passed)
    return Outcome(report, diff_tables(report), passed)


def baseline(
    package: opt.Package,
    output: opt.BaselineFile,
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
) -> Outcome:
    """Write a package's fingerprint, small enough for git, to compare later packages with."""
    from qwen_export import baseline

    with ProgressDisplay() as progress:
        taken = baseline(package, output, progress=progress)
    return Outcome(taken, fingerprint_tables(taken, output))
