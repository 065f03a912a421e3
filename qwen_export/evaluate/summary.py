"""Everything a report says, computed from records alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import median
from typing import Any

from qwen_export.evaluate.answers import STAGES
from qwen_export.evaluate.records import Record, Records
from qwen_export.evaluate.scoring import chosen_letter, is_right
from qwen_export.evaluate.statistics import paired_p_value, wilson_interval


@dataclass(frozen=True)
class SystemScore:
    """How one system did."""

    name: str
    facts: dict[str, Any]
    asked: int
    right: int
    accuracy: float
    interval: tuple[float, float]
    """95 % interval of the accuracy."""
    invalid: tuple[int, ...]
    """Questions whose answer names no option; counted as wrong."""
    cut_off: tuple[int, ...]
    """Questions whose answer reached the token limit."""
    failed: tuple[int, ...]
    """Questions whose picture could not be used; counted as wrong."""
    seconds: dict[str, float]
    """Median seconds of each stage, and `total`."""


@dataclass(frozen=True)
class Side:
    """One system's part in a disagreement."""

    text: str
    tokens: tuple[int, ...]
    letter: str | None
    right: bool
    margin: float | None
    """Logit margin of its own choice at the first differing step; None where it has none."""
    runner_up: int | None
    failed: str | None


@dataclass(frozen=True)
class Disagreement:
    """A question that two systems answered with different tokens."""

    index: int
    question: str
    options: tuple[str, ...]
    target: str
    step: int
    """First differing token, from 0."""
    first: Side
    second: Side


@dataclass(frozen=True)
class Comparison:
    """Two systems on the questions that both answered."""

    first: str
    second: str
    asked: int
    both_right: int
    only_first: int
    only_second: int
    both_wrong: int
    difference: float
    """Accuracy of the first less that of the second."""
    p_value: float
    """Exact two-sided McNemar test."""
    same_tokens: int
    same_letters: int
    """Both name the same option; two invalid answers do not count as the same."""
    disagreements: tuple[Disagreement, ...]


@dataclass(frozen=True)
class Summary:
    """Result of an evaluation."""

    run: dict[str, Any]
    systems: tuple[SystemScore, ...]
    comparisons: tuple[Comparison, ...]
    answers: dict[str, dict[int, Record]]
    """System -> index -> record."""

    @property
    def shown(self) -> list[int]:
        """Questions that the report shows with their picture: disagreements, invalid and failed answers."""
        found = {item.index for comparison in self.comparisons for item in comparison.disagreements}
        for system in self.systems:
            found.update(system.invalid, system.failed)
        return sorted(found)

    def to_dict(self) -> dict[str, Any]:
        """As JSON; the answers stand in the records."""
        return {
            "run": self.run,
            "systems": [asdict(system) for system in self.systems],
            "comparisons": [asdict(comparison) for comparison in self.comparisons],
        }


def summarise(records: Records) -> Summary:
    """Score every answer anew and compare every two systems."""
    answers = {name: records.of(name) for name in records.systems}
    scores = tuple(_score(name, records.systems[name], list(answers[name].values())) for name in answers)
    pairs = tuple(_compare(a, answers[a], b, answers[b]) for a, b in combinations(answers, 2))
    return Summary(records.run, scores, pairs, answers)


def _score(name: str, facts: Record, answers: list[Record]) -> SystemScore:
    right = sum(_right(record) for record in answers)
    return SystemScore(
        name=name,
        facts={key: value for key, value in facts.items() if key != "name"},
        asked=len(answers),
        right=right,
        accuracy=right / len(answers) if answers else 0.0,
        interval=wilson_interval(right, len(answers)),
        invalid=tuple(r["index"] for r in answers if r["failed"] is None and _letter(r) is None),
        cut_off=tuple(r["index"] for r in answers if not r["ended"]),
        failed=tuple(r["index"] for r in answers if r["failed"] is not None),
        seconds=_medians([r["seconds"] for r in answers if r["failed"] is None]),
    )


def _medians(seconds: list[dict[str, float]]) -> dict[str, float]:
    stages = [stage for stage in STAGES if any(stage in item for item in seconds)]
    found = {stage: median(item[stage] for item in seconds if stage in item) for stage in stages}
    return {**found, "total": median(sum(item.values()) for item in seconds)} if seconds else {}


def _compare(first: str, a: dict[int, Record], second: str, b: dict[int, Record]) -> Comparison:
    common = sorted(a.keys() & b.keys())
    outcomes = [(_right(a[i]), _right(b[i])) for i in common]
    only_first, only_second = outcomes.count((True, False)), outcomes.count((False, True))
    differing = [i for i in common if not _same_tokens(a[i], b[i])]
    return Comparison(
        first=first,
        second=second,
        asked=len(common),
        both_right=outcomes.count((True, True)),
        only_first=only_first,
        only_second=only_second,
        both_wrong=outcomes.count((False, False)),
        difference=(only_first - only_second) / len(common) if common else 0.0,
        p_value=paired_p_value(only_first, only_second),
        same_tokens=len(common) - len(differing),
        same_letters=sum(_letter(a[i]) is not None and _letter(a[i]) == _letter(b[i]) for i in common),
        disagreements=tuple(_disagreement(a[i], b[i]) for i in differing),
    )


def _disagreement(a: Record, b: Record) -> Disagreement:
    step = first_difference(a["tokens"], b["tokens"])
    return Disagreement(
        a["index"], a["question"], tuple(a["options"]), a["target"], step, _side(a, step), _side(b, step)
    )


def first_difference(a: Iterable[int], b: Iterable[int]) -> int:
    """Index of the first token that differs; the length of the shorter answer if it is the start of the other."""
    step = 0
    for step, (x, y) in enumerate(zip(a, b, strict=False), 1):
        if x != y:
            return step - 1
    return step


def _side(record: Record, step: int) -> Side:
    margins, runners_up = record.get("margins", ()), record.get("runners_up", ())
    return Side(
        text=record["text"],
        tokens=tuple(record["tokens"]),
        letter=_letter(record),
        right=_right(record),
        margin=margins[step] if step < len(margins) else None,
        runner_up=runners_up[step] if step < len(runners_up) else None,
        failed=record["failed"],
    )


def _same_tokens(a: Record, b: Record) -> bool:
    return list(a["tokens"]) == list(b["tokens"]) and (a["failed"] is None) == (b["failed"] is None)


def _right(record: Record) -> bool:
    return record["failed"] is None and is_right(record["text"], record["target"])


def _letter(record: Record) -> str | None:
    return None if record["failed"] is not None else chosen_letter(record["text"], len(record["options"]))
