"""Compare two packages or baselines: what changed in each graph, the most severe first.

interface   what a caller of the graph must follow: names, dtypes and axes of inputs and outputs, a graph too many or
            missing, opset and IR version (they decide who can load the graph)
operators   other computation: nodes added, removed or moved, weights added, removed or of another dtype or shape, a
            figure above its threshold
wiring      the same nodes, other values: attributes and constants, who feeds whom, contents and bindings of weights,
            the small files beside the graphs
nothing     notes on what may explain a change: versions, recipe, checkpoint
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from itertools import chain
from pathlib import Path
from typing import Any

from qwen_export.package.fingerprint import (
    Fingerprint,
    GraphFingerprint,
    fingerprint,
    is_package,
    read_baseline,
)
from qwen_export.package.node_marks import Mark
from qwen_export.package.open import Package, open_package
from qwen_export.package.write import file_record
from qwen_export.recipe import Thresholds
from qwen_export.weights import Progress


class Severity(IntEnum):
    """How much a difference matters to others."""

    nothing = 0
    wiring = 1
    operators = 2
    interface = 3


@dataclass(frozen=True)
class Difference:
    """One difference.

    Attributes:
        kind: `interface`, `opset`, `graph`, `node`, `weight`, `file`, `threshold`, `version`, `recipe`, `checkpoint`.
        place: graph or file, and what in it.
    """

    severity: Severity
    kind: str
    place: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} {self.place}: {self.detail}"


@dataclass(frozen=True)
class Metric:
    """One figure of one graph. `mark` is empty when it is the same, else `changed` or `over`, its threshold passed."""

    graph: str
    metric: str
    baseline: int
    current: int
    mark: str

    @property
    def change(self) -> str:
        """Difference and share, for people."""
        if self.baseline == self.current:
            return ""
        share = f" ({(self.current - self.baseline) / self.baseline:+.1%})" if self.baseline else ""
        return f"{self.current - self.baseline:+,}{share}"


@dataclass(frozen=True)
class DiffReport:
    """All differences between two packages or baselines, the most severe first, and the figures of both."""

    first: str
    second: str
    differences: tuple[Difference, ...]
    metrics: tuple[Metric, ...] = ()
    histogram: tuple[Metric, ...] = ()
    """Operators whose number differs."""

    @property
    def severity(self) -> Severity:
        """Of the most severe difference."""
        return max((difference.severity for difference in self.differences), default=Severity.nothing)

    @property
    def same(self) -> bool:
        """Whether nothing but notes differs."""
        return self.severity is Severity.nothing

    def to_dict(self) -> dict[str, Any]:
        """JSON form; severities by name."""
        return {
            "same": self.same,
            "severity": self.severity.name,
            "first": self.first,
            "second": self.second,
            "differences": [{**asdict(entry), "severity": entry.severity.name} for entry in self.differences],
            "metrics": [asdict(metric) for metric in self.metrics],
            "histogram": [asdict(metric) for metric in self.histogram],
        }


def diff(
    first: str | Path,
    second: str | Path,
    *,
    deep: bool = False,
    thresholds: Thresholds | None = None,
    progress: Progress | None = None,
) -> DiffReport:
    """Compare two packages, graph-only exports or baseline files, in any mixture.

    Args:
        deep: hash the files themselves; otherwise the hashes of two manifests are believed where they are equal.
        thresholds: by default those of the first, so that a change cannot loosen the limits it is judged by.

    Raises:
        PackageError: one of them is neither, or is damaged.
    """
    opened = [open_package(path) if is_package(path) else None for path in (first, second)]
    unread = set() if deep else _equal_data(*opened)
    taken = [
        fingerprint(package, unread=unread, progress=progress) if package else read_baseline(path)
        for package, path in zip(opened, (first, second), strict=True)
    ]
    report = compare(taken[0], taken[1], str(first), str(second), thresholds)
    if not deep:
        return report
    wrong = [entry for package in opened if package for entry in _not_as_listed(package)]
    return replace(report, differences=_sorted([*report.differences, *wrong]))


def compare(
    a: Fingerprint, b: Fingerprint, first: str, second: str, thresholds: Thresholds | None = None
) -> DiffReport:
    """Compare two fingerprints. `first`, `second`: what to call them."""
    limits = asdict(thresholds or a.thresholds)
    found = [*_notes(a, b), *_files(a, b)]
    metrics: list[Metric] = []
    histogram: list[Metric] = []
    for path in dict.fromkeys((*a.graphs, *b.graphs)):
        if path not in a.graphs or path not in b.graphs:
            where = first if path in a.graphs else second
            found.append(Difference(Severity.interface, "graph", path, f"only in {where}"))
            continue
        one, other = a.graphs[path], b.graphs[path]
        found += _graph(path, one, other)
        for name, old in one.metrics.items():
            metrics.append(_metric(path, name, old, other.metrics[name], limits[name]))
        for operator in sorted({*one.operators, *other.operators}):
            old, new = one.operators.get(operator, 0), other.operators.get(operator, 0)
            if old != new:
                histogram.append(Metric(path, operator, old, new, "changed"))
    for metric in metrics:
        if metric.mark == "over":
            limit = f"{metric.change} is more than the threshold of {limits[metric.metric]:.1%}"
            found.append(Difference(Severity.operators, "threshold", f"{metric.graph}, {metric.metric}", limit))
    return DiffReport(first, second, _sorted(found), tuple(metrics), tuple(histogram))


def _sorted(found: list[Difference]) -> tuple[Difference, ...]:
    return tuple(sorted(dict.fromkeys(found), key=lambda entry: -entry.severity))


def _metric(path: str, name: str, old: int, new: int, limit: float) -> Metric:
    over = new > old * (1 + limit)
    return Metric(path, name, old, new, "over" if over else "changed" if new != old else "")


def _equal_data(a: Package | None, b: Package | None) -> set[str]:
    """Data files that both manifests list with one hash."""
    if a is None or b is None:
        return set()
    one, other = a.manifest.files, b.manifest.files
    data = {record.data for record in a.manifest.components.values()}
    return {path for path in data if path in one and one[path] == other.get(path)}


def _not_as_listed(package: Package) -> Iterator[Difference]:
    for path, record in package.manifest.files.items():
        if file_record(package.folder / path) != record:
            yield Difference(Severity.wiring, "file", path, f"{package.folder}: not as its manifest says")


def _notes(a: Fingerprint, b: Fingerprint) -> Iterator[Difference]:
    for kind, left, right in (("version", a.versions, b.versions), ("recipe", a.recipe, b.recipe)):
        for key in sorted({*left, *right}):
            if left.get(key) != right.get(key):
                yield Difference(Severity.nothing, kind, key, f"{left.get(key)!r} became {right.get(key)!r}")
    if a.config_sha256 != b.config_sha256:
        yield Difference(Severity.nothing, "checkpoint", "config", "another config.json")


def _files(a: Fingerprint, b: Fingerprint) -> Iterator[Difference]:
    if a.weights != b.weights:
        yield Difference(Severity.wiring, "file", "weights", f"{a.weights} became {b.weights}")
    for path in sorted({*a.files, *b.files}):
        if path not in a.files or path not in b.files:
            yield Difference(Severity.wiring, "file", path, "removed" if path in a.files else "added")
        elif a.files[path] != b.files[path]:
            yield Difference(Severity.wiring, "file", path, "contents differ")


def _graph(path: str, one: GraphFingerprint, other: GraphFingerprint) -> Iterator[Difference]:
    for name, old, new in (("opset", one.opset, other.opset), ("IR version", one.ir_version, other.ir_version)):
        if old != new:
            yield Difference(Severity.interface, "opset", path, f"{name} {old} became {new}")
    for side in ("inputs", "outputs"):
        yield from _interface(f"{path}, {side}", getattr(one, side), getattr(other, side))
    nodes = list(_fold(_nodes(path, one.layers, other.layers)))
    weights = list(_weights(path, one, other))
    yield from nodes
    yield from weights
    if one.structure != other.structure and not nodes and not weights:
        yield Difference(Severity.wiring, "node", path, "equal nodes are connected otherwise")


def _interface(place: str, old: tuple[Any, ...], new: tuple[Any, ...]) -> Iterator[Difference]:
    before, after = ({entry[0]: entry for entry in side} for side in (old, new))
    gone, come = [name for name in before if name not in after], [name for name in after if name not in before]
    if len(old) == len(new) and len(gone) == len(come):
        for left, right in zip(old, new, strict=True):
            if left[0] in gone and right[0] in come:
                yield Difference(Severity.interface, "interface", place, f"{left[0]} is renamed to {right[0]}")
                gone.remove(left[0])
                come.remove(right[0])
    for name in gone:
        yield Difference(Severity.interface, "interface", place, f"{name} is removed")
    for name in come:
        yield Difference(Severity.interface, "interface", place, f"{name} is added")
    for name in (name for name in before if name in after and before[name] != after[name]):
        told = [f"{dtype} [{', '.join(axes)}]" for _, dtype, axes in (before[name], after[name])]
        yield Difference(Severity.interface, "interface", place, f"{name}: {told[0]} became {told[1]}")
    if set(before) == set(after) and list(before) != list(after):
        yield Difference(Severity.interface, "interface", place, "another order")


Layers = dict[str, Counter[Mark]]


def _nodes(path: str, old: Layers, new: Layers) -> Iterator[Difference]:
    """Nodes matched by module, operator and idea; what is left on both sides of two modules has moved."""
    gone: Counter[tuple[str, str]] = Counter()
    come: Counter[tuple[str, str]] = Counter()
    changed: Counter[tuple[str, str, str]] = Counter()
    for layer in dict.fromkeys((*old, *new)):
        before, after = old.get(layer, Counter()), new.get(layer, Counter())
        left, right = _by_identity(before - after), _by_identity(after - before)
        for key in dict.fromkeys((*left, *right)):
            module, told = ".".join(filter(None, (layer, key[0]))), _told(key[1], key[2])
            one, other = list(left.get(key, ())), list(right.get(key, ()))
            for pair in zip(one, other, strict=False):
                changed[module, told, _what(*pair)] += 1
            gone[module, told] += max(0, len(one) - len(other))
            come[module, told] += max(0, len(other) - len(one))
    gone, come = +gone, +come
    for module, told in list(gone):
        for target in [key for key in come if key[1] == told]:
            moved = min(gone[module, told], come[target])
            if moved:
                yield _node(Severity.operators, path, module, f"{moved} {told} moved to {target[0] or 'no module'}")
                gone[module, told] -= moved
                come[target] -= moved
    for count_of, word in ((gone, "removed"), (come, "added")):
        for (module, told), count in (+count_of).items():
            yield _node(Severity.operators, path, module, f"{count} {told} {word}")
    for (module, told, what), count in changed.items():
        yield _node(Severity.wiring, path, module, f"{count} {told}: {what}")


_LAYER_NUMBER = re.compile(r"(?<=layers\.)\d+|(?<=blocks\.)\d+")


def _fold(found: Iterable[Difference]) -> Iterator[Difference]:
    """The same difference of several layers is one: `layers.0-2,4-6`."""
    layers: dict[Difference, list[int]] = {}
    for entry in found:
        number = _LAYER_NUMBER.search(entry.place)
        folded = replace(entry, place=_LAYER_NUMBER.sub("*", entry.place))
        layers.setdefault(folded, []).extend([int(number.group())] if number else [])
    for entry, numbers in layers.items():
        yield replace(entry, place=entry.place.replace("*", _ranges(sorted(numbers))))


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _node(severity: Severity, path: str, module: str, detail: str) -> Difference:
    return Difference(severity, "node", f"{path}, {module or 'no module'}", detail)


def _by_identity(marks: Counter[Mark]) -> dict[tuple[str, str, str], list[Mark]]:
    found: dict[tuple[str, str, str], list[Mark]] = {}
    for mark in chain.from_iterable([mark] * count for mark, count in sorted(marks.items())):
        found.setdefault((mark.module, mark.operator, mark.idea), []).append(mark)
    return found


def _told(operator: str, idea: str) -> str:
    return f"{operator} of {idea}" if idea else operator


def _what(old: Mark, new: Mark) -> str:
    parts = [
        (old.settings != new.settings, "another attribute or constant"),
        (old.wiring != new.wiring, "other inputs or readers"),
    ]
    return " and ".join(text for differs, text in parts if differs)


def _weights(path: str, one: GraphFingerprint, other: GraphFingerprint) -> Iterator[Difference]:
    for name in dict.fromkeys((*one.weights, *other.weights)):
        old, new, place = one.weights.get(name), other.weights.get(name), f"{path}, {name}"
        if old is None or new is None:
            yield Difference(Severity.operators, "weight", place, "removed" if new is None else "added")
        elif (old.dtype, old.shape) != (new.dtype, new.shape):
            told = [f"{weight.dtype} {list(weight.shape)}" for weight in (old, new)]
            yield Difference(Severity.operators, "weight", place, f"{told[0]} became {told[1]}")
        elif old.binding != new.binding:
            yield Difference(Severity.wiring, "weight", place, "made otherwise of the checkpoint's tensors")
        elif old.sha256 and new.sha256 and old.sha256 != new.sha256:
            yield Difference(Severity.wiring, "weight", place, "contents differ")
