"""Command that asks a package real questions: evaluate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qwen_export.cli import options as opt
from qwen_export.cli.outcome import Outcome
from qwen_export.cli.output import notices, visible
from qwen_export.errors import UsageError

if TYPE_CHECKING:
    from qwen_export.evaluate import Step, Summary, System

LINE_EVERY = 5.0
"""Seconds between progress lines."""


class Task(StrEnum):
    """What is asked."""

    ai2d = "ai2d"


class Runtime(StrEnum):
    """What runs the package."""

    ort = "ort"
    ort_genai = "ort-genai"


def evaluate(
    task: Annotated[Task, typer.Argument(metavar="TASK", help="The questions: ai2d.", show_default=False)],
    package: Annotated[
        Path | None, typer.Argument(metavar="PKG", help="Package folder; none with --rescore.", show_default=False)
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Folder of the data set's parquet files.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for records, summary and report.")
    ] = Path("ai2d-evaluation"),
    reference: Annotated[
        str | None, typer.Option("--reference", metavar="DIR|HUB_ID", help="Checkpoint that Transformers answers with.")
    ] = None,
    revision: opt.Revision = None,
    reference_dtype: Annotated[
        opt.Dtype | None, typer.Option("--reference-dtype", help="dtype of the reference; default the package's.")
    ] = None,
    reference_device: Annotated[
        str | None, typer.Option("--reference-device", metavar="NAME", help="torch device; default the provider's.")
    ] = None,
    runtime: Annotated[
        list[Runtime] | None, typer.Option("--runtime", help="What runs the package; may be given twice.")
    ] = None,
    provider: opt.ProviderOption = opt.Provider.cpu,
    device: Annotated[int, typer.Option("--device", metavar="N", help="Number of the CUDA device.")] = 0,
    threads: Annotated[int | None, typer.Option("--threads", metavar="N", help="CPU threads.")] = None,
    indices: Annotated[str | None, typer.Option("--indices", metavar="LIST", help="Rows, such as 0-99,124.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", help="The first N of them.")] = None,
    shard: Annotated[str | None, typer.Option("--shard", metavar="I/N", help="The I-th of N parts of them.")] = None,
    resume: Annotated[bool, typer.Option("--resume", metavar="", help="Go on with the records in --output.")] = False,
    rescore: Annotated[
        list[Path] | None,
        typer.Option("--rescore", metavar="DIR", help="Score these records anew; several (shards) are merged."),
    ] = None,
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
) -> Outcome:
    """Ask a package the questions of AI2D, and the original beside it."""
    from qwen_export.evaluate import Ai2d, select
    from qwen_export.evaluate import evaluate as ask
    from qwen_export.evaluate import rescore as score_anew

    if rescore:
        if package or data or reference:
            raise UsageError("--rescore works from records alone: leave the package, --data and --reference out.")
        return _outcome(score_anew(rescore, output), output)
    if package is None or data is None:
        raise UsageError("Give a package and --data DIR, or --rescore DIR.")
    systems = _package_systems(package, runtime or [Runtime.ort], str(provider), device, threads)
    if reference is not None:
        from qwen_export.evaluate import reference_system

        where = reference_device or ("cpu" if provider == opt.Provider.cpu else f"cuda:{device}")
        dtype = str(reference_dtype or systems[0].facts["dtype"])
        systems.append(reference_system(reference, dtype=dtype, device=where, revision=revision))
    rows = Ai2d(data)
    chosen = select(len(rows), indices=indices, limit=limit, shard=shard)
    summary = ask(systems, rows, output, selection=chosen, resume=resume, on_step=_Progress())
    return _outcome(summary, output)


def _package_systems(
    package: Path, runtimes: list[Runtime], provider: str, device: int, threads: int | None
) -> list[System]:
    from qwen_export.evaluate import genai_system, package_system
    from qwen_export.package import open_package
    from qwen_export.runtime.session import Device

    opened = open_package(package)
    systems = []
    for runtime in dict.fromkeys(runtimes):
        if runtime is Runtime.ort:
            systems.append(package_system(opened, Device(provider, device), threads))
        else:
            systems.append(genai_system(opened, provider, threads))
    return systems


class _Progress:
    """A line with the running accuracy now and then, and at the end of each system."""

    def __init__(self) -> None:
        self._console = notices()
        self._system, self._begun, self._printed = "", 0.0, 0.0

    def __call__(self, step: Step) -> None:
        now = time.monotonic()
        if step.system != self._system:
            self._system, self._begun, self._printed = step.system, now, 0.0
        last = step.done == step.total
        if not last and now - self._printed < LINE_EVERY:
            return
        self._printed = now
        pace = (now - self._begun) / max(step.fresh - 1, 1)
        failed = f", {step.failed} failed" if step.failed else ""
        left = "" if last or step.fresh < 2 else f", {pace:.2f} s each, {pace * (step.total - step.done):,.0f} s left"
        accuracy = f"{step.right}/{step.done} right ({step.right / step.done:.1%})"
        self._console.print(
            f"{step.system}: {step.done}/{step.total}, {accuracy}{failed}{left}", markup=False, style="dim"
        )


def _outcome(summary: Summary, output: Path) -> Outcome:
    return Outcome({"output": str(output), **summary.to_dict()}, _tables(summary, output))


def _tables(summary: Summary, output: Path) -> Iterator[RenderableType]:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("system", "right", "accuracy", "95 % interval", "invalid", "failed", "median seconds"):
        table.add_column(heading, justify="left" if heading in ("system", "median seconds") else "right")
    for system in summary.systems:
        low, high = system.interval
        times = ", ".join(f"{stage} {spent:.3f}" for stage, spent in system.seconds.items())
        table.add_row(
            system.name, f"{system.right}/{system.asked}", f"{system.accuracy:.1%}", f"{low:.1%} to {high:.1%}",
            str(len(system.invalid)), str(len(system.failed)), times,
        )  # fmt: skip
    yield table
    for pair in summary.comparisons:
        yield Text(
            f"{pair.first} and {pair.second}: same tokens on {pair.same_tokens} of {pair.asked}, both right "
            f"{pair.both_right}, only one right {pair.only_first} and {pair.only_second}, difference "
            f"{pair.difference:+.2%}, exact test p = {pair.p_value:.3g}"
        )
        for case in pair.disagreements[:20]:
            sides = [
                f"{visible(side.failed or side.text)!r}" + (f" (margin {side.margin:.3f})" if side.margin else "")
                for side in (case.first, case.second)
            ]
            yield Text(f"  row {case.index}, token {case.step}, target {case.target}: {sides[0]} / {sides[1]}")
    for system in summary.systems:
        if system.invalid:
            yield Text(f"{system.name}: no option named (wrong) in rows {', '.join(map(str, system.invalid))}")
        if system.failed:
            yield Text(f"{system.name}: picture unusable (wrong) in rows {', '.join(map(str, system.failed))}")
    yield Text(f"report: {output / 'report.html'}")
