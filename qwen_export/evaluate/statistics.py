"""Small exact statistics: an interval for a share and a test for paired answers."""

from __future__ import annotations

from math import comb, sqrt

_Z = 1.959963984540054
"""Two-sided 95 % point of the normal distribution."""


def wilson_interval(right: int, asked: int) -> tuple[float, float]:
    """95 % interval of an accuracy (Wilson's score interval); (0, 1) if nothing was asked."""
    if asked == 0:
        return 0.0, 1.0
    share, spread = right / asked, _Z * _Z / asked
    middle = (share + spread / 2) / (1 + spread)
    half = _Z * sqrt(share * (1 - share) / asked + spread / (4 * asked)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def paired_p_value(only_first: int, only_second: int) -> float:
    """Exact two-sided McNemar test: how likely is so uneven a split of the questions that one side alone got right?

    1.0 if there are none.
    """
    total, fewer = only_first + only_second, min(only_first, only_second)
    tail = sum(comb(total, k) for k in range(fewer + 1))
    return min(1.0, 2 * tail / 2**total)
