"""Both models of the parity matrix, and its verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qwen_export.recipe import Recipe
from tests.bound_graph import TinyGraphs
from tests.parity.prompts import Case
from tests.parity.two_models import Ours, Upstream, compare, verdicts
from tests.reference_decoder import ReferenceDecoder


@pytest.fixture(scope="session")
def agrees(tiny_upstream: Any, tiny_graphs: TinyGraphs) -> Callable[[Case], None]:
    """Check one case, the graphs of both targets against one run of Transformers."""

    def check(case: Case) -> None:
        judge = Upstream(tiny_upstream, tiny_graphs).run(case)
        for target in ("cuda", "cpu"):
            run = Ours(tiny_graphs, Recipe(dtype="fp32", logits="all", target=target)).run(case)
            outside = [distance for distance in compare(run, judge) if not distance.is_within]
            if outside:
                reference = ReferenceDecoder(tiny_graphs.config.text, tiny_graphs.tensors)
                pytest.fail(f"target {target}: {outside}\nAgainst float64:\n{verdicts(run, judge, reference)}")
            assert np.array_equal(run.tokens, judge.tokens), f"target {target}: greedy tokens differ"

    return check
