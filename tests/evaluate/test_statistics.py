"""Interval and paired test against values worked out elsewhere."""

from __future__ import annotations

import pytest

from qwen_export.evaluate.statistics import paired_p_value, wilson_interval


@pytest.mark.parametrize(
    ("right", "asked", "low", "high"),
    # scipy.stats.binomtest(right, asked).proportion_ci(method="wilson")
    [(175, 200, 0.821986, 0.913880), (0, 10, 0.0, 0.277533), (10, 10, 0.722467, 1.0), (1, 2, 0.094531, 0.905469)],
)
def test_wilson_interval(right: int, asked: int, low: float, high: float) -> None:
    assert wilson_interval(right, asked) == pytest.approx((low, high), abs=2e-6)


def test_an_interval_of_nothing_says_nothing() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"),
    # scipy.stats.binomtest(a, a + b, 0.5).pvalue
    [(0, 0, 1.0), (1, 0, 1.0), (0, 1, 1.0), (5, 0, 0.0625), (2, 10, 0.03857421875), (6, 6, 1.0), (3, 7, 0.34375)],
)
def test_paired_p_value(only_first: int, only_second: int, p: float) -> None:
    assert paired_p_value(only_first, only_second) == pytest.approx(p, rel=1e-12)


def test_the_paired_test_does_not_overflow_on_a_whole_split() -> None:
    assert 0 < paired_p_value(1400, 1688) < 1e-6
