"""The command that compares a package with Transformers: verify."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qwen_export.cli import options as opt
from qwen_export.cli.outcome import Outcome
from qwen_export.cli.output import visible
from qwen_export.cli.progress import ProgressDisplay

if TYPE_CHECKING:
    from qwen_export.verify import VerifyReport
    from qwen_export.verify.bisect import Bisection


class Suite(StrEnum):
    """How many cases are compared."""

    quick = "quick"
    full = "full"


def verify(
    package: opt.Package,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="DIR|HUB_ID", help="Checkpoint the package was made of.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option("--reference", metavar="FILE.npz", help="Compare with a saved reference instead.")
    ] = None,
    save_reference: Annotated[
        Path | None, typer.Option("--save-reference", metavar="FILE.npz", help="Keep what Transformers gave.")
    ] = None,
    suite: Annotated[Suite, typer.Option("--suite", help="How many cases.")] = Suite.quick,
    provider: opt.ProviderOption = opt.Provider.cpu,
    bisect: Annotated[
        bool, typer.Option("--bisect", metavar="", help="Name the first layer and operation that leaves the truth.")
    ] = False,
    deep: Annotated[bool, typer.Option("--deep", metavar="", help="Hash every source tensor, not a sample.")] = False,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="Write a page with plots and tables.")
    ] = None,
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
) -> Outcome:
    """Say how far every tensor of a package is from Transformers, and judge it by the recipe's limits."""
    from qwen_export.verify import verify

    with ProgressDisplay() as progress:
        result = verify(
            package, checkpoint=checkpoint, reference=reference, save_reference=save_reference, suite=str(suite),
            provider=str(provider), bisect=bisect, deep=deep, report=report, progress=progress,
        )  # fmt: skip
    return Outcome(result, verdict(result, every_check=verbose), passed=result.passed)


def verdict(result: VerifyReport, *, every_check: bool) -> Iterator[RenderableType]:
    """Verdict first, then figures per tensor, cases, and whatever was not run."""
    failures = len(result.failures) + len(result.identity.findings)
    word = "passes" if result.passed else f"fails with {failures} finding{'s' if failures > 1 else ''}"
    colour = "bold green" if result.passed else "bold red"
    yield Text(f"verify {word}: {result.dtype}, suite {result.suite}, computed by {result.computed_by}", style=colour)
    for finding in result.identity.findings:
        yield Text(visible(finding), style="red")
    for check in result.checks if every_check else [*result.failures, *result.scattered]:
        yield Text(str(check), style="yellow" if check.scattered else "" if check.passed else "red")
    yield _figures(result)
    used = {name for check in result.checks for name in check.tolerance.split(", ")}
    limits = {name: limit for name, limit in asdict(result.ledger.limits).items() if name in used}
    yield Text("limits: " + ", ".join(f"{name} {limit:g}" for name, limit in limits.items()))
    hashes = result.identity
    yield Text(
        f"hashes: {hashes.files_checked} files, {hashes.tensors_checked} of {hashes.tensors_known} source tensors"
    )
    same = sum(run.same == run.steps for run in result.free_runs)
    yield Text(f"cases: {', '.join(result.cases)}; decoded freely, {same} of {len(result.free_runs)} with equal tokens")
    for case, reason in result.not_run.items():
        yield Text(f"not run: {case}: {reason}", style="yellow")
    if result.bisect is not None:
        yield Text(visible(str(result.bisect)))
        if result.show_bisect:
            yield _operations(result.bisect)
    if result.report is not None:
        yield Text(f"report: {result.report}")


def _operations(found: Bisection) -> Table:
    """Operations at fault, or the largest errors where none is; each was fed what the truth has there."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("component", "stage", "place", "call"):
        table.add_column(column, no_wrap=True)
    for column in ("error", "limit"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("nodes", overflow="fold")
    for row in found.faults or found.worst(10):
        nodes = ", ".join(row.operations[:6])
        table.add_row(
            row.component, row.stage, row.place, row.call, f"{row.error:.1e}", f"{row.limit:.0e}", nodes,
            style="red" if row.wrong else "",
        )  # fmt: skip
    return table


def _figures(result: VerifyReport) -> Table:
    """One row per kind of tensor: its worst layer in each column."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("tensor", no_wrap=True)
    for column in ("layers", "max abs", "relative RMS", "error ratio", "outside 1e-2"):
        table.add_column(column, justify="right")
    kinds: dict[str, list[dict]] = {}
    for row in result.rows():
        kinds.setdefault(str(row["tensor"]).partition(" of ")[0], []).append(row)
    for kind, rows in kinds.items():
        worst = {
            key: max(row[key] for row in rows) for key in ("max_abs", "relative_rms", "error_ratio", "outside_share")
        }
        table.add_row(
            kind,
            str(len(rows)) if len(rows) > 1 else "",
            f"{worst['max_abs']:.2e}",
            f"{worst['relative_rms']:.2e}",
            f"{worst['error_ratio']:.3f}" if result.dtype != "fp32" else "",
            f"{worst['outside_share']:.4%}",
        )
    return table
