"""A few of the quick suite's cases, for tests that need not see them all."""

from __future__ import annotations

from qwen_export.verify.cases import Plan, plans

FEW = ("text", "sliced", "padded", "unequal-images")


def few_plans(suite: str) -> list[tuple[Plan, int]]:
    """In the place of `qwen_export.verify.cases.plans`."""
    return [(plan, seed) for plan, seed in plans("quick") if plan.name in FEW]
