"""The report: one HTML file, nothing fetched from anywhere, with the verdict on top."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from qwen_export.errors import UsageError
from qwen_export.verify.bisect import Row
from qwen_export.verify.outcome import VerifyReport
from qwen_export.verify.parity import ORDER, WORDS, Errors, pooled
from qwen_export.verify.plot import Series, plot
from qwen_export.verify.report_style import STYLE

WORST = 12
"""Operations shown where none is at fault."""
PEERS = {"fp32": "Transformers fp32", "fp16": "Transformers fp16", "bf16": "Transformers bf16"}


def write_report(report: VerifyReport, path: Path) -> None:
    """Write the page.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        path.write_text(page(report), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from None


def page(report: VerifyReport) -> str:
    """The whole page."""
    title = f"{'Passed' if report.passed else 'Failed'}: {report.package.name} ({report.dtype})"
    sections = [
        _verdict(report),
        _section("Error per layer", _plots(report)),
        _section("Checks", _checks(report)),
        _section("Every tensor, pooled over the cases", _tensors(report)),
        _section("Every operation, with the truth's inputs", _operations(report)),
        _section("Case by case", _cases(report)),
        _section("Free-running tokens", _free_runs(report)),
        _section("What was not run", _not_run(report)),
        _section("Hashes and versions", _provenance(report)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>{''.join(sections)}</main>"
        "</body></html>\n"
    )


def _verdict(report: VerifyReport) -> str:
    passed = report.passed
    held = sum(check.passed for check in report.checks)
    findings = report.identity.findings
    hashed = f"{report.identity.files_checked} files"
    if report.checkpoint is not None:
        hashed += f" and {report.identity.tensors_checked} source tensors"
    lead = f"{held} of {len(report.checks)} checks hold over {len(report.cases)} cases; {hashed} hashed, "
    lead += "all right." if not findings else f"{len(findings)} wrong."
    bad = [escape(text) for text in [*findings, *map(str, report.failures)]]
    failures = f'<ul class="bad">{"".join(f"<li>{text}</li>" for text in bad[:12])}</ul>' if bad else ""
    if len(bad) > 12:
        failures += f"<p>and {len(bad) - 12} more below.</p>"
    first = report.bisect.first if report.bisect is not None else None
    if first is not None:
        failures = f'<p class="place"><b>First place at fault:</b> {escape(str(report.bisect))}</p>' + failures
    facts = _facts(
        {
            "package": str(report.package),
            "checkpoint": "a saved reference" if report.checkpoint is None else str(report.checkpoint),
            "computed by": report.computed_by,
            "truth": f"Transformers {report.reference['versions'].get('transformers', '')} in "
            f"{report.reference['truth']}, on the weight values the package stores",
            "compared beside it": f"{PEERS[report.dtype]}, every weight in that dtype",
            "suite": f"{report.suite}, {report.seconds:.0f} s",
        }
    )
    return (
        f'<header class="{"pass" if passed else "fail"}"><p class="word">{"PASSED" if passed else "FAILED"}</p>'
        f"<h1>{escape(report.package.name)} <small>{report.dtype}</small></h1><p>{lead}</p></header>{failures}{facts}"
    )


def _plots(report: VerifyReport) -> str:
    out = []
    for kind in ("hidden", "vision", "recurrent_state", "conv_state", "key", "value"):
        tensors = [tensor for tensor in report.ledger.tensors() if tensor.kind == kind]
        if not tensors:
            continue
        ours, peer = [], []
        for tensor in tensors:
            total = pooled(report.ledger.of(tensor))
            ours.append((tensor.layer or 0, math.nan if total.not_finite else total.relative_rms))
            peer.append((tensor.layer or 0, math.nan if total.peer_not_finite else total.peer_relative_rms))
        series = [Series(PEERS[report.dtype], "peer", peer), Series("this package", "ours", ours)]
        axis = "vision block" if kind == "vision" else "decoder layer"
        drawing = plot(series, axis, f"relative RMS error of the {WORDS[kind]} per layer")
        out.append(f"<figure><figcaption>{WORDS[kind]}</figcaption>{drawing}</figure>")
    legend = (
        '<p class="legend"><span class="key ours"></span> this package <span class="key peer"></span> '
        f"{PEERS[report.dtype]} &mdash; RMS error against the truth, over the truth's RMS</p>"
    )
    return legend + f'<div class="plots">{"".join(out)}</div>'


def _checks(report: VerifyReport) -> str:
    rows = [
        [_mark(check.passed, check.scattered), escape(check.name), _number(check.value), _number(check.limit),
         check.tolerance, escape(check.note)]
        for check in sorted(report.checks, key=lambda check: (check.passed, not check.scattered))
    ]  # fmt: skip
    note = (
        "<p>An error ratio is our RMS error against the truth over that of Transformers in the same dtype; two equally "
        "good halves scatter around 1.</p>"
        if report.dtype != "fp32"
        else ""
    )
    return note + _table(["", "what", "found", "limit", "name of the limit", "note"], rows, numbers=(2, 3))


def _tensors(report: VerifyReport) -> str:
    rows = []
    for tensor in report.ledger.tensors():
        rows.append([escape(str(tensor)), *_figures(pooled(report.ledger.of(tensor)))])
    return _table(["tensor", *_FIGURES], rows, numbers=range(1, 8))


_FIGURES = ("max abs", "relative RMS", "same, Transformers", "error ratio", "outside 1e-2", "not finite", "numbers")


def _figures(errors: Errors) -> list[str]:
    return [
        _number(errors.max_abs),
        _number(errors.relative_rms),
        _number(errors.peer_relative_rms),
        _number(errors.ratio),
        f"{errors.outside_share:.2g}" if errors.outside else "0",
        str(errors.not_finite),
        f"{errors.count:,}",
    ]


def _operations(report: VerifyReport) -> str:
    found = report.bisect
    if found is None:
        return "<p>Not run.</p>"
    faults = found.faults
    out = f"<p>{len(found.rows)} operations were computed alone in float32, each fed what the truth has there. "
    out += f"{escape(str(found)[0].upper() + str(found)[1:])}.</p>"
    out += "".join(f'<p class="place">{escape(problem)}</p>' for problem in found.problems)
    worst = faults or found.worst(WORST)
    out += f"<h3>{'At fault' if faults else 'The largest errors'}</h3>" + _operation_table(worst)
    if report.show_bisect:
        out += f"<details><summary>All {len(found.rows)}</summary>{_operation_table(found.rows)}</details>"
    return out


def _operation_table(rows: Iterable[Row]) -> str:
    cells = [
        [_mark(not row.wrong), row.component, row.stage, escape(row.place), row.call, _number(row.error),
         _number(row.limit), escape(", ".join(row.operations[:6]))]
        for row in rows
    ]  # fmt: skip
    heads = ["", "component", "stage", "place", "call", "relative RMS", "limit", "nodes"]
    return _table(heads, cells, numbers=(5, 6))


def _cases(report: VerifyReport) -> str:
    out = []
    for case in report.cases:
        entries = [(tensor, errors) for (tensor, name), errors in report.ledger.entries.items() if name == case]
        rows = []
        for kind in ORDER:
            errors = [e for tensor, e in entries if tensor.kind == kind]
            if errors:
                rows.append([WORDS[kind], *_figures(pooled(errors))])
        everything = pooled(errors for _, errors in entries)
        head = f"{escape(case)} <small>largest difference {everything.max_abs:.2g}</small>"
        table = _table(["kind, all layers", *_FIGURES], rows, numbers=range(1, 8))
        out.append(f"<details><summary>{head}</summary>{table}</details>")
    return "".join(out)


def _free_runs(report: VerifyReport) -> str:
    if not report.free_runs:
        return "<p>None.</p>"
    rows = [
        [escape(run.case), f"{run.same} of {run.steps}", f"{run.peer_same} of {run.steps}",
         "" if run.same == run.steps else _number(run.lead)]
        for run in report.free_runs
    ]  # fmt: skip
    note = (
        "<p>Greedy tokens until the first that is not the truth's. A small lead of the truth's token explains one.</p>"
    )
    heads = ["case", "this package", PEERS[report.dtype], "truth's lead there"]
    return note + _table(heads, rows, numbers=(1, 2, 3))


def _not_run(report: VerifyReport) -> str:
    if not report.not_run:
        return "<p>Everything of this suite was run.</p>"
    rows = [[escape(name), escape(reason)] for name, reason in report.not_run.items()]
    return _table(["what", "why"], rows)


def _provenance(report: VerifyReport) -> str:
    identity = report.identity
    facts = {
        "package files": f"{identity.files_checked} hashed, {len(identity.wrong_files)} wrong",
        "source tensors": f"{identity.tensors_checked} of {identity.tensors_known} hashed, "
        f"{len(identity.wrong_tensors)} wrong",
        **{f"reference: {name}": str(value) for name, value in report.reference["versions"].items()},
        "reference computed on": str(report.reference["device"]),
        **report.versions,
    }
    return _facts(facts)


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _facts(facts: dict[str, str]) -> str:
    return f"<dl>{''.join(f'<dt>{escape(k)}</dt><dd>{escape(v)}</dd>' for k, v in facts.items())}</dl>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    right = set(numbers)
    sides = [" class=n" if index in right else "" for index in range(len(heads))]
    head = "".join(f"<th{side}>{escape(text)}</th>" for side, text in zip(sides, heads, strict=True))
    lines = ["".join(f"<td{side}>{cell}</td>" for side, cell in zip(sides, row, strict=True)) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _mark(passed: bool, scattered: bool = False) -> str:
    if scattered:
        return '<span class="maybe">scatter</span>'
    return '<span class="ok">ok</span>' if passed else '<span class="no">fails</span>'


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else str(value)
