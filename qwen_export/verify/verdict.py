"""The verdict: named checks with their limits, the worst first. Nothing that fails is left out.

fp32 is judged by largest absolute difference (outputs of the graphs) and relative RMS. Where Transformers in fp32 is
itself further from the truth than these limits, as on models with large activations, its own error times
`fp32_error_ratio` takes their place. Half precision is judged by the error ratio, pooled over the cases: of logits,
features, embeddings, each kind of state, each state, and the output of each layer.

Errors have heavy tails: on trained weights one prompt can amplify rounding a thousandfold, whoever rounds, and then
that case alone is the pooled ratio. A ratio above the limit is taken for such scatter, and says so, only if all hold:
it is within two standard errors of the limit (jackknife over the cases), the cases' own ratios are within the limit on
the geometric mean, and none that matters is above `OUTLIER`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qwen_export.recipe import Tolerances
from qwen_export.verify.bisect import Bisection
from qwen_export.verify.parity import INNER, WORDS, Errors, Ledger, Tensor, pooled

MIN_CASES = 16
"""Seeded cases over which a pooled error ratio means something."""
OUTLIER = 8.0
"""A case this much further from the truth than Transformers is no scatter."""
HEAVY = 0.05
"""Share of the pooled squared error from which on a case matters."""


@dataclass(frozen=True)
class Check:
    """One limit, held or not."""

    name: str
    value: float
    limit: float
    tolerance: str
    """Name of the limit in the recipe."""
    passed: bool
    note: str = ""

    @property
    def scattered(self) -> bool:
        """Above its limit, and taken for scatter."""
        return self.passed and self.value > self.limit

    def __str__(self) -> str:
        sign, note = "<=" if self.value <= self.limit else ">", f"; {self.note}" if self.note else ""
        return f"{self.name}: {self.value:.3g} {sign} {self.limit:.3g} ({self.tolerance}){note}"


def judge(ledger: Ledger, bisection: Bisection | None, *, half: bool) -> list[Check]:
    """Every check, in the order of computation.

    Args:
        bisection: every operation with the truth's inputs, where the reference has them.
        half: the package's dtype is fp16 or bf16.
    """
    checks = _finite(ledger)
    checks.append(_positions(ledger))
    if bisection is not None:
        checks.append(_operations(bisection))
    return checks + (_half(ledger) if half else _fp32(ledger))


def first_not_finite(ledger: Ledger) -> tuple[Tensor, str] | None:
    """The first tensor, in the order of computation, that holds NaN or infinity, and a case in which it does."""
    found = [(tensor.rank, tensor, case) for (tensor, case), errors in ledger.entries.items() if errors.not_finite]
    return min(found, key=lambda item: item[0])[1:] if found else None


def _finite(ledger: Ledger) -> list[Check]:
    bad = first_not_finite(ledger)
    total = sum(errors.not_finite for errors in ledger.entries.values())
    note = "" if bad is None else f"first in the {bad[0].component}: {bad[0]}, case {bad[1]}"
    return [Check("numbers that are not finite", float(total), 0.0, "always", total == 0, note)]


def _operations(bisection: Bisection) -> Check:
    wrong = len(bisection.faults) + len(bisection.problems)
    name = f"operations, of {len(bisection.rows)}, that leave the truth by themselves"
    note = "; ".join([str(bisection), *bisection.problems][: 3 if wrong else 0])
    return Check(name, float(wrong), 0.0, "operation_error, delta_rule_error", not wrong, note)


def _positions(ledger: Ledger) -> Check:
    wrong = ledger.wrong_positions
    return Check("cases with wrong positions", float(len(wrong)), 0.0, "always", not wrong, ", ".join(wrong))


def _fp32(ledger: Ledger) -> list[Check]:
    limits, checks = ledger.limits, []
    for tensor in ledger.tensors():
        total = pooled(ledger.of(tensor))
        if tensor.kind not in INNER:
            name = f"{tensor}, largest difference"
            checks.append(_absolute(name, total.max_abs, "fp32_max_abs", total.peer_max_abs, limits))
        name = f"{tensor}, relative RMS error"
        checks.append(_absolute(name, total.relative_rms, "fp32_relative_rms", total.peer_relative_rms, limits))
    return checks


def _absolute(name: str, value: float, tolerance: str, peer: float, limits: Tolerances) -> Check:
    limit, note = getattr(limits, tolerance), ""
    if peer * limits.fp32_error_ratio > limit:
        limit, tolerance = peer * limits.fp32_error_ratio, "fp32_error_ratio"
        note = f"Transformers in fp32 is itself {peer:.2g} away"
    return Check(name, value, limit, tolerance, value <= limit, note)


def _half(ledger: Ledger) -> list[Check]:
    limits, checks = ledger.limits, []
    tensors = ledger.tensors()
    for kind in dict.fromkeys(tensor.kind for tensor in tensors if tensor.kind not in INNER):
        by_case: dict[str, Errors] = {}
        for case, errors in ledger.of_kind(kind):
            by_case.setdefault(case, Errors()).add(errors)
        checks.append(_ratio_check(WORDS[kind], list(by_case.values()), limits))
    for tensor in tensors:
        if tensor.layer is not None:
            checks.append(_ratio_check(str(tensor), ledger.of(tensor), limits))
    return checks


def _ratio_check(name: str, cases: Sequence[Errors], limits: Tolerances) -> Check:
    total, limit = pooled(cases), limits.half_error_ratio
    passed, note = total.ratio <= limit, _peer_note(total)
    if not passed and is_scatter(cases, limit):
        passed = True
        note = f"within scatter: standard error {jackknife(cases):.2g}, geometric mean of the cases {_mean(cases):.2g}"
    return Check(f"{name}, error ratio", total.ratio, limit, "half_error_ratio", passed, note)


def is_scatter(cases: Sequence[Errors], limit: float) -> bool:
    """Whether a pooled ratio above the limit is the luck of a few cases. Args: cases: errors of each case."""
    total = pooled(cases)
    heavy = [errors.ratio for errors in cases if errors.ours > HEAVY * total.ours]
    within = total.ratio - 2 * jackknife(cases) <= limit
    return len(cases) >= MIN_CASES and within and _mean(cases) <= limit and max(heavy) <= OUTLIER


def _mean(cases: Sequence[Errors]) -> float:
    """Geometric mean of the cases' own ratios."""
    logs = [math.log(errors.ratio) for errors in cases if errors.ours > 0 and errors.peer > 0]
    return math.exp(sum(logs) / len(logs)) if logs else math.inf


def _peer_note(total: Errors) -> str:
    bad = total.peer_not_finite
    return f"Transformers in half gave {bad} numbers that are not finite; those are left out" if bad else ""


def jackknife(errors: Sequence[Errors]) -> float:
    """Standard error of a pooled ratio, from leaving each case out in turn."""
    ours, peer = sum(e.ours for e in errors), sum(e.peer for e in errors)
    ratios = []
    for one in errors:
        below = peer - one.peer
        if below <= 0:
            return math.inf
        ratios.append(math.sqrt(max(0.0, ours - one.ours) / below))
    count = len(ratios)
    if count < 2:
        return math.inf
    mean = sum(ratios) / count
    return math.sqrt((count - 1) / count * sum((r - mean) ** 2 for r in ratios))
