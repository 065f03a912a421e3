"""The geometry of a call in standard operators: equal to the eager operator, number by number."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from qwen_export.passes.lower_vision_plan import lower_vision_plan
from qwen_export.wrappers.vision_operators import vision_plan
from tests.passes.one_node import nodes, one_node, operators, run
from tests.vision_cases import GRIDS, Grids, grid_array, num_rows

OUTPUTS = ("place", "extent", "query_rows", "key_start", "key_end", "key_count", "slot")


def model(merge: int, block: int) -> ir.Model:
    inputs = {"pixel_values": ("float32", ("rows", 3)), "grid_thw": ("int64", ("media", 3))}
    return one_node("vision_plan", inputs, {"merge": merge, "block": block}, dict.fromkeys(OUTPUTS, "int64"))


def lowered(merge: int, block: int) -> ir.Model:
    graph = model(merge, block)
    assert lower_vision_plan(graph) == 1
    return graph


def agree(grids: Grids, merge: int, block: int) -> None:
    pixels, grid = np.zeros((num_rows(grids), 3), np.float32), grid_array(grids)
    found = run(lowered(merge, block), {"pixel_values": pixels, "grid_thw": grid})
    wanted = vision_plan(torch.from_numpy(pixels), torch.from_numpy(grid), merge, block)
    for name, value in zip(OUTPUTS, wanted, strict=True):
        np.testing.assert_array_equal(found[name], value.numpy(), err_msg=f"{name} of {grids}")


@pytest.mark.parametrize("block", [0, 7, 16, 100_000])
@pytest.mark.parametrize("case", [name for name in GRIDS if name != "a large picture"])
def test_equals_the_eager_operator(case, block):
    agree(GRIDS[case], 2, block)


@pytest.mark.parametrize("merge", [1, 2, 3])
@pytest.mark.parametrize("block", [0, 5])
def test_random_mixes_and_other_merges(merge, block):
    rng = np.random.default_rng(merge * 10 + block)
    for _ in range(8):
        media = int(rng.integers(1, 7))
        sides = rng.integers(1, 6, size=(media, 2)) * merge
        agree(np.concatenate([rng.integers(1, 4, size=(media, 1)), sides], axis=1).tolist(), merge, block)


def test_every_row_stands_in_one_slot_of_its_own_segment():
    grids = GRIDS["picture, video, picture"]
    feeds = {"pixel_values": np.zeros((num_rows(grids), 3), np.float32), "grid_thw": grid_array(grids)}
    for block in (0, 10):
        plan = run(lowered(2, block), feeds)
        rows = plan["query_rows"].reshape(-1)[plan["slot"]]
        np.testing.assert_array_equal(rows, np.arange(num_rows(grids)))
        owner = plan["slot"] // plan["query_rows"].shape[1]
        start, end = plan["key_start"][owner, 0], plan["key_end"][owner, 0]
        assert ((start <= rows) & (rows < end)).all()
        np.testing.assert_array_equal(plan["key_count"][owner], end - start)


def test_blocks_share_the_longest_segment_evenly():
    grids: Grids = [[1, 28, 38], [1, 4, 4]]
    feeds = {"pixel_values": np.zeros((num_rows(grids), 3), np.float32), "grid_thw": grid_array(grids)}
    assert run(lowered(2, 1024), feeds)["query_rows"].shape == (3, 532)


def test_only_integer_arithmetic_of_the_default_domain():
    for block in (0, 64):
        found = operators(lowered(2, block).graph)
        assert all(node.domain == "" for node in nodes(lowered(2, block).graph))
        assert not set(found) & {
            "Loop",
            "Scan",
            "If",
            "NonZero",
            "ScatterND",
            "SequenceAt",
            "SplitToSequence",
            "Expand",
        }
        assert sum(found.values()) <= 70
