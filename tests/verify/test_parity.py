"""The arithmetic of a verdict, on numbers small enough to check by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from qwen_export.recipe import Tolerances
from qwen_export.verify.bisect import Bisection, Row
from qwen_export.verify.cases import Case
from qwen_export.verify.parity import Errors, Ledger, Tensor, measure, pooled
from qwen_export.verify.verdict import first_not_finite, jackknife, judge

LIMITS = Tolerances()


def case(mask: list[list[int]], positions: tuple[int, ...] = (), steps: int = 1) -> Case:
    array = np.array(mask)
    return Case("c#0", 0, np.zeros_like(array), array, (), (array.shape[1],), steps, False, positions)


def test_measure_sums_what_it_should() -> None:
    truth = np.array([1.0, 2.0, 2.0])
    ours, peer = truth + np.array([0.3, 0, 0.4]), truth + np.array([0, 0.5, 0])
    found = measure(ours, truth, peer, LIMITS)
    assert found.count == 3
    assert found.max_abs == pytest.approx(0.4) and found.peer_max_abs == pytest.approx(0.5)
    assert found.relative_rms == pytest.approx(0.5 / 3) and found.ratio == pytest.approx(1.0)
    assert found.outside == 3, "all three are outside 1e-2 of the peer"


def test_pooling_is_over_numbers_and_not_over_cases() -> None:
    many, few = Errors(count=9, ours=9.0, peer=1.0, truth=9.0), Errors(count=1, ours=1.0, peer=1.0, truth=1.0)
    assert pooled([many, few]).ratio == pytest.approx(math.sqrt(10 / 2))


def test_exact_on_both_sides_is_a_ratio_of_one_and_exact_peer_alone_is_infinite() -> None:
    assert Errors(count=1).ratio == 1.0
    assert Errors(count=1, ours=1e-20).ratio == math.inf


def test_numbers_that_are_not_finite_are_counted_and_left_out() -> None:
    truth = np.ones(4)
    found = measure(np.array([1, np.nan, np.inf, 1.5]), truth, truth, LIMITS)
    assert (found.not_finite, found.max_abs, found.outside) == (2, 0.5, 3)


def test_padding_is_not_compared_but_conv_and_recurrent_state_are() -> None:
    ledger = Ledger(LIMITS)
    one = case([[0, 1, 1], [1, 1, 1]], positions=(0, 2))
    wrong_at_padding = np.zeros((2, 2, 4))
    wrong_at_padding[0, 0] = 9
    ledger.note(one, "logits", wrong_at_padding, np.zeros((2, 2, 4)), np.zeros((2, 2, 4)))
    keys = np.zeros((2, 1, 4, 2))
    keys[0, :, 0] = 9
    ledger.note(one, "end/3.key", keys, np.zeros_like(keys), np.zeros_like(keys))
    assert all(errors.max_abs == 0 for errors in ledger.entries.values())
    assert ledger.entries[Tensor("key", 3), "c#0"].count == (2 + 1 + 3 + 1) * 2, "decode steps are never padding"
    state = np.full((2, 3, 3), 9.0)
    ledger.note(one, "end/0.conv_state", state, np.zeros_like(state), np.zeros_like(state))
    assert ledger.entries[Tensor("conv_state", 0), "c#0"].max_abs == 9


def test_the_beginning_of_a_kv_cache_is_not_counted_twice() -> None:
    ledger = Ledger(LIMITS)
    keys = np.zeros((1, 1, 2, 2))
    ledger.note(case([[1, 1]]), "prompt/3.key", keys, keys, keys)
    assert not ledger.entries
    ledger.note(case([[1, 1]], steps=0), "prompt/3.key", keys, keys, keys)
    assert len(ledger.entries) == 1


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="logits of c#0 has shape"):
        Ledger(LIMITS).note(case([[1]], (0,)), "logits", np.zeros((1, 1, 3)), np.zeros((1, 1, 4)), np.zeros((1, 1, 4)))


def ledger_of(**entries: Errors) -> Ledger:
    ledger = Ledger(LIMITS)
    for name, errors in entries.items():
        kind, _, layer = name.partition("__")
        ledger.entries[Tensor(kind, int(layer) if layer else None), "a#0"] = errors
    return ledger


def test_fp32_limits_hold_unless_transformers_itself_is_further_away() -> None:
    near = Errors(count=10, ours=1e-9, peer=1e-9, truth=10.0, max_abs=6e-5, peer_max_abs=1e-5)
    (check,) = (c for c in judge(ledger_of(logits=near), None, half=False) if "largest" in c.name)
    assert not check.passed and check.limit == 5e-5 and check.tolerance == "fp32_max_abs"
    loud = Errors(count=10, ours=1e-9, peer=1e-9, truth=10.0, max_abs=6e-5, peer_max_abs=4e-5)
    (check,) = (c for c in judge(ledger_of(logits=loud), None, half=False) if "largest" in c.name)
    assert check.passed and check.tolerance == "fp32_error_ratio" and "itself" in check.note


def test_half_is_judged_by_the_pooled_ratio() -> None:
    for ratio, passed in ((1.04, True), (1.06, False)):
        errors = Errors(count=1, ours=ratio**2, peer=1.0, truth=100.0)
        checks = judge(ledger_of(logits=errors, hidden__0=errors, vision__1=errors), None, half=True)
        ratios = [check for check in checks if "error ratio" in check.name]
        names = [check.name.removesuffix(", error ratio") for check in ratios]
        assert names == ["logits", "vision block output of block 1", "layer output of layer 0"]
        assert all(check.passed is passed for check in ratios)


def cases_of(*ratios: float, weight: float = 1.0) -> list[Errors]:
    """One case for each ratio; the last one's errors weigh `weight` times as much."""
    scale = [1.0] * (len(ratios) - 1) + [weight]
    return [Errors(count=1, ours=r * r * w, peer=w, truth=100.0) for r, w in zip(ratios, scale, strict=True)]


@pytest.mark.parametrize(
    ("cases", "passed"),
    [
        (cases_of(*[0.7] * 16, 3.9, weight=2.0), True),  # one chaotic prompt
        (cases_of(*[1.2] * 17), False),  # a little worse everywhere
        (cases_of(*[0.7] * 16, 9.0, weight=2.0), False),  # one case is broken
        (cases_of(*[0.7] * 12, *[3.0] * 5), False),  # one kind of case is broken
        (cases_of(*[1.1] * 16, 1.5, weight=50.0), False),  # one case hides that all are worse
        (cases_of(*[0.7] * 10, 3.9, weight=2.0), False),  # too few cases to speak of scatter
    ],
)
def test_a_ratio_above_the_limit_is_scatter_only_if_all_speaks_for_it(cases: list[Errors], passed: bool) -> None:
    ledger = Ledger(LIMITS)
    ledger.entries = {(Tensor("logits"), f"{i}#0"): errors for i, errors in enumerate(cases)}
    (check,) = (check for check in judge(ledger, None, half=True) if "error ratio" in check.name)
    assert check.value > 1.05 and check.limit == 1.05
    assert check.passed is passed
    assert ("within scatter" in check.note) is passed


def test_jackknife_is_zero_for_equal_cases_and_large_for_one_that_dominates() -> None:
    assert jackknife(cases_of(*[1.2] * 16)) == pytest.approx(0, abs=1e-9)
    assert jackknife(cases_of(*[0.7] * 16, 3.9, weight=2.0)) > 0.2
    assert jackknife(cases_of(1.0)) == math.inf


def test_the_first_not_finite_tensor_is_the_first_computed() -> None:
    bad = Errors(count=1, not_finite=1)
    found = first_not_finite(ledger_of(logits=bad, key__7=bad, hidden__3=bad, conv_state__4=bad))
    assert found is not None and str(found[0]) == "layer output of layer 3"


def test_an_operation_at_fault_fails_the_verdict() -> None:
    row = Row("decoder", "layers.2", "step", "up_proj", ("layers.2.MatMul_4",), 1e-5, 2e-6)
    checks = judge(Ledger(LIMITS), Bisection([row]), half=False)
    check = next(check for check in checks if check.name.startswith("operations"))
    assert not check.passed and "layers.2.MatMul_4" in check.note
    broken = Bisection([SimpleNamespace(wrong=False)], ["decoder, head cannot be computed: x"])  # type: ignore[list-item]
    check = next(check for check in judge(Ledger(LIMITS), broken, half=False) if check.name.startswith("operations"))
    assert not check.passed and "cannot be computed" in check.note
    assert Row("", "", "", "", (), math.nan, 1.0).wrong, "NaN is never right"
