"""Commands for ONNX Runtime GenAI: genai, genai-check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from qwen_export.cli import options as opt
from qwen_export.cli.export_commands import written
from qwen_export.cli.outcome import Outcome
from qwen_export.cli.output import visible
from qwen_export.cli.progress import ProgressDisplay

if TYPE_CHECKING:
    from qwen_export.genai import GenAIReport


def genai(package: opt.Package, as_json: opt.AsJson = False, verbose: opt.Verbose = False) -> Outcome:
    """Add the files by which ONNX Runtime GenAI opens a package; graphs and weights stay as they are."""
    from qwen_export.genai import add_genai_files

    with ProgressDisplay() as progress:
        return written(add_genai_files(package, progress=progress))


def genai_check(
    package: opt.Package,
    provider: Annotated[
        opt.Provider | None, typer.Option("--provider", help="Where to compute; default as genai_config.json says.")
    ] = None,
    new_tokens: Annotated[
        int | None, typer.Option("--new-tokens", metavar="N", help="Greedy tokens compared per prompt.")
    ] = None,
    threads: opt.Threads = None,
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
) -> Outcome:
    """Open a package in GenAI and compare its answers with those of run."""
    from qwen_export.genai import check_genai

    given = {} if new_tokens is None else {"new_tokens": new_tokens}
    where = None if provider is None else str(provider)
    with ProgressDisplay() as progress:
        report = check_genai(package, provider=where, threads=threads, progress=progress, **given)
    return Outcome(report.to_dict(), _lines(report), passed=report.ok)


def _lines(report: GenAIReport) -> Iterator[RenderableType]:
    yield Text(report.headline, style="bold green" if report.ok else "bold red")
    for finding in report.findings:
        yield Text(visible(str(finding)), style="red")
    for case in report.cases:
        yield Text(visible(str(case)), style="" if case.same else "red")
    for note in report.notes:
        yield Text(f"note: {visible(note)}", style="yellow")
