"""A comparison as Markdown, for a pull request or the summary of a CI job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qwen_export.package.diff import DiffReport, Metric, Severity

_MARKS = {"": "", "changed": "changed", "over": "**over**"}
MAX_ROWS = 200
"""Differences listed one by one; a job summary has an end."""


def diff_markdown(report: DiffReport, title: str) -> str:
    """A heading with the verdict, the differences by severity, and the figures."""
    verdict = "no change" if report.same else f"changes: **{report.severity.name}**"
    return "\n".join([f"### {_cell(title)}: {verdict}", "", *_differences(report), *_figures(report), ""])


def _differences(report: DiffReport) -> Iterator[str]:
    listed = report.differences[:MAX_ROWS]
    for severity in sorted(Severity, reverse=True):
        entries = [entry for entry in listed if entry.severity is severity]
        if entries:
            yield f"**{severity.name if severity else 'notes'}**"
            yield ""
            yield from (f"- {_cell(str(entry))}" for entry in entries)
            yield ""
    if len(report.differences) > MAX_ROWS:
        yield f"and {len(report.differences) - MAX_ROWS:,} more"
        yield ""


def _figures(report: DiffReport) -> Iterator[str]:
    yield from _table("metric", report.metrics)
    if report.histogram:
        yield ""
        yield from _table("operator", report.histogram)


def _table(what: str, rows: Sequence[Metric]) -> Iterator[str]:
    yield f"| component | {what} | baseline | current | change | mark |"
    yield "|---|---|---:|---:|---:|---|"
    for row in rows:
        name = row.graph.removesuffix("/model.onnx")
        cells = (_cell(name), row.metric, f"{row.baseline:,}", f"{row.current:,}", row.change, _MARKS[row.mark])
        yield f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    """Text of a file, so that it stays text: no table border, no markup, no line break."""
    return "".join(f"\\{c}" if c in "\\|*_`<>[]#" else c if c.isprintable() else " " for c in text)
