"""Write `summary.json` and `report.html`: one self-contained page that shows each disagreement with its picture."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from qwen_export.evaluate.scoring import letters
from qwen_export.evaluate.summary import Comparison, Disagreement, Side, Summary, SystemScore

PICTURES = "pictures"
SUMMARY, REPORT = "summary.json", "report.html"
_MAGIC = (
    (b"\x89PNG", "image/png"),
    (b"\xff\xd8", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
    (b"RIFF", "image/webp"),
)
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1c1c1c}
table{border-collapse:collapse;margin:.7rem 0}th,td{border:1px solid #c9c9c9;padding:.3rem .6rem;text-align:left}
td.n{text-align:right;font-variant-numeric:tabular-nums}section{border-top:2px solid #ddd;margin-top:1.5rem}
img{max-width:26rem;max-height:22rem;border:1px solid #ccc}pre{white-space:pre-wrap;margin:0;font-size:.9em}
.right{color:#136f2d}.wrong{color:#a4161a}.case{display:flex;gap:1.2rem;flex-wrap:wrap}
"""


def write_report(output: Path, summary: Summary, folders: Sequence[Path]) -> None:
    """Write both files.

    Args:
        folders: where the pictures lie, each under `pictures/`.
    """
    text = json.dumps(summary.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
    (output / SUMMARY).write_bytes((text + "\n").encode("utf-8", errors="replace"))
    page = "\n".join(_page(summary, folders))
    (output / REPORT).write_bytes(page.encode("utf-8", errors="replace"))


def _page(summary: Summary, folders: Sequence[Path]) -> Iterator[str]:
    yield "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>AI2D evaluation</title>"
    yield f"<style>{_STYLE}</style></head><body><h1>AI2D: does the package answer like the original?</h1>"
    yield f"<p>{escape(str(summary.run['protocol']))}; greedy, at most {summary.run['max_new_tokens']} new tokens, "
    revision = summary.run["data_revision"] or "revision unknown"
    yield f"thinking off. Data: {escape(summary.run['dataset'])}, {escape(revision)}, {summary.run['rows']} rows.</p>"
    yield from _scores(summary)
    for comparison in summary.comparisons:
        yield from _comparison(comparison, folders)
    for system in summary.systems:
        yield from _invalid(system, summary, folders)
    yield "</body></html>"


def _scores(summary: Summary) -> Iterator[str]:
    yield "<h2>Accuracy</h2><table><tr><th>system</th><th>right</th><th>accuracy</th><th>95 % interval</th>"
    yield "<th>invalid</th><th>cut off</th><th>failed</th><th>median seconds</th></tr>"
    for system in summary.systems:
        low, high = system.interval
        facts = ", ".join(f"{key} {str(value)[:12]}" for key, value in system.facts.items() if value is not None)
        times = ", ".join(f"{stage} {spent:.3f}" for stage, spent in system.seconds.items())
        yield f"<tr><td title='{escape(facts, quote=True)}'>{escape(system.name)}</td>"
        yield f"<td class=n>{system.right} / {system.asked}</td><td class=n>{system.accuracy:.1%}</td>"
        yield f"<td class=n>{low:.1%} to {high:.1%}</td><td class=n>{len(system.invalid)}</td>"
        yield f"<td class=n>{len(system.cut_off)}</td><td class=n>{len(system.failed)}</td><td>{times}</td></tr>"
    yield "</table>"


def _comparison(comparison: Comparison, folders: Sequence[Path]) -> Iterator[str]:
    first, second = escape(comparison.first), escape(comparison.second)
    yield f"<h2>{first} and {second}</h2><table>"
    rows = {
        "questions that both answered": comparison.asked,
        "same tokens": comparison.same_tokens,
        "same option": comparison.same_letters,
        "both right": comparison.both_right,
        f"only {first} right": comparison.only_first,
        f"only {second} right": comparison.only_second,
        "both wrong": comparison.both_wrong,
        "difference in accuracy": f"{comparison.difference:+.2%}",
        "exact McNemar test, two-sided": f"p = {comparison.p_value:.3g}",
    }
    yield from (f"<tr><td>{name}</td><td class=n>{value}</td></tr>" for name, value in rows.items())
    yield "</table>"
    for case in comparison.disagreements:
        yield from _disagreement(case, comparison, folders)


def _disagreement(case: Disagreement, comparison: Comparison, folders: Sequence[Path]) -> Iterator[str]:
    yield f"<section><h3>Row {case.index}: first differing token {case.step}</h3><div class=case>"
    yield f"<div>{_picture(case.index, folders)}</div><div>{_question(case.question, case.options, case.target)}<table>"
    yield "<tr><th>system</th><th>answer</th><th>option</th><th>margin there</th><th>tokens</th></tr>"
    for name, side in ((comparison.first, case.first), (comparison.second, case.second)):
        yield _side(name, side)
    yield "</table></div></div></section>"


def _side(name: str, side: Side) -> str:
    answer = f"failed: {escape(side.failed)}" if side.failed else f"<pre>{escape(side.text)}</pre>"
    margin = "" if side.margin is None else f"{side.margin:.4f} over token {side.runner_up}"
    return (
        f"<tr><td>{escape(name)}</td><td class={'right' if side.right else 'wrong'}>{answer}</td>"
        f"<td>{side.letter or 'none'}</td><td class=n>{margin}</td><td>{' '.join(map(str, side.tokens))}</td></tr>"
    )


def _invalid(system: SystemScore, summary: Summary, folders: Sequence[Path]) -> Iterator[str]:
    listed = sorted({*system.invalid, *system.failed})
    if not listed:
        return
    yield f"<h2>{escape(system.name)}: answers that name no option, counted as wrong</h2>"
    for index in listed:
        record = summary.answers[system.name][index]
        said = f"failed: {record['failed']}" if record["failed"] else record["text"]
        yield f"<section><h3>Row {index}</h3><div class=case><div>{_picture(index, folders)}</div><div>"
        yield f"{_question(record['question'], record['options'], record['target'])}"
        yield f"<p class=wrong>Answer:</p><pre>{escape(said)}</pre></div></div></section>"


def _question(text: str, options: Sequence[str], target: str) -> str:
    lines = [
        f"<li{' class=right' if letter == target else ''}>{letter}. {escape(option)}</li>"
        for letter, option in zip(letters(len(options)), options, strict=True)
    ]
    return f"<p>{escape(text)}</p><ul style='list-style:none;padding-left:0'>{''.join(lines)}</ul>"


def _picture(index: int, folders: Sequence[Path]) -> str:
    for folder in folders:
        path = folder / PICTURES / f"{index:05d}"
        if path.is_file():
            content = path.read_bytes()
            kind = next((mime for magic, mime in _MAGIC if content.startswith(magic)), None)
            if kind is None:
                return f"<em>{len(content)} bytes that are no picture</em>"
            data = base64.b64encode(content).decode("ascii")
            return f"<img alt='picture of row {index}' src='data:{kind};base64,{data}'>"
    return "<em>the picture is not beside the records</em>"
