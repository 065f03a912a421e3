"""The verdict: named checks with their limits, the worst first. Nothing that fails is left out.

fp32 is judged by largest absolute difference (outputs of the graphs) and relative RMS. Where Transformers in fp32 is
itself further from the truth than these limits, as on models with large activations, its own error times
`fp32_error_ratio` takes their place. Half precision is judged by the
error ratio, pooled over the cases: of logits, features, embeddings, each kind of state, and the output of each layer.
A single state of a single layer can be nearly empty in all cases but one, and its ratio is then that one case's luck;
it fails only where its ratio is above the limit by more than two standard errors (jackknife over the cases).
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

    def __str__(self) -> str:
        sign, note = "<=" if self.passed else ">", f"; {self.note}" if self.note else ""
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
        by_case = ledger.of_kind(kind)
        checks.append(_ratio_check(WORDS[kind], [errors for _, errors in by_case], limits))
    for tensor in tensors:
        if tensor.kind in INNER:
            checks.append(_ratio_check(str(tensor), ledger.of(tensor), limits))
        elif tensor.layer is not None:
            checks.append(_single_state(tensor, ledger.of(tensor), limits))
    return checks


def _ratio_check(name: str, errors: Sequence[Errors], limits: Tolerances) -> Check:
    total = pooled(errors)
    note = _peer_note(total)
    passed = total.ratio <= limits.half_error_ratio
    return Check(f"{name}, error ratio", total.ratio, limits.half_error_ratio, "half_error_ratio", passed, note)


def _single_state(tensor: Tensor, errors: Sequence[Errors], limits: Tolerances) -> Check:
    total = pooled(errors)
    scatter = jackknife(errors)
    limit = limits.half_error_ratio
    passed = total.ratio <= limit or total.ratio - 2 * scatter <= limit
    note = f"standard error {scatter:.2g}: within scatter" if passed and total.ratio > limit else _peer_note(total)
    return Check(f"{tensor}, error ratio", total.ratio, limit, "half_error_ratio", passed, note)


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
