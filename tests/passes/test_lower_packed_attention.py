"""Attention of packed pictures in standard operators: equal to the eager operator, without any mask."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from qwen_export.passes.lower_packed_attention import lower_packed_attention
from qwen_export.wrappers.vision_operators import packed_attention, vision_plan
from tests.passes.one_node import branch, nodes, one_node, run, top_level
from tests.vision_cases import GRIDS, Grids, feature_ranges, grid_array, num_rows

HEADS, WIDTH = 3, 24
HALF = WIDTH // HEADS // 2
PLAN = ("query_rows", "key_start", "key_end", "key_count", "slot")


def model(block: int, dtype: str = "float32") -> ir.Model:
    angles = ("float32", (1, "rows", HALF) if block else ("blocks", "slots", HALF))
    inputs = {"qkv": (dtype, ("rows", 3 * WIDTH)), "cos": angles, "sin": angles}
    shapes = (("blocks", "slots"), ("blocks", 1), ("blocks", 1), ("blocks",), ("rows",))
    inputs |= {name: ("int64", shape) for name, shape in zip(PLAN, shapes, strict=True)}
    graph = one_node("packed_attention", inputs, {"num_heads": HEADS, "block": block}, {"out": dtype})
    assert lower_packed_attention(graph) == 1
    return graph


def feeds(grids: Grids, block: int) -> dict[str, np.ndarray]:
    """Random queries, keys and values, and angles of a position per row."""
    rng, rows = np.random.default_rng(1), num_rows(grids)
    plan = vision_plan(torch.zeros(rows, 1), torch.from_numpy(grid_array(grids)), 2, block)[2:]
    given = {name: value.numpy() for name, value in zip(PLAN, plan, strict=True)}
    angles = rng.uniform(-4, 4, size=(rows, HALF)).astype(np.float32)
    angles = angles[None] if block else angles[given["query_rows"]]
    qkv = rng.standard_normal((rows, 3 * WIDTH), dtype=np.float32)
    return {"qkv": qkv, "cos": np.cos(angles), "sin": np.sin(angles), **given}


def eager(given: dict[str, np.ndarray], block: int) -> np.ndarray:
    return packed_attention(*(torch.from_numpy(value) for value in given.values()), HEADS, block).numpy()


@pytest.mark.parametrize("block", [0, 5, 16, 1000])
@pytest.mark.parametrize("case", [name for name in GRIDS if name != "a large picture"])
def test_equals_the_eager_operator(case, block):
    given = feeds(GRIDS[case], block)
    # float32 softmax sums of at most 352 keys in another order
    np.testing.assert_allclose(run(model(block), given)["out"], eager(given, block), atol=3e-6)


def test_blocks_of_any_length_give_the_same():
    grids = GRIDS["videos and pictures"]
    whole = run(model(0), feeds(grids, 0))["out"]
    for block in (1, 7, 64):
        np.testing.assert_allclose(run(model(block), feeds(grids, block))["out"], whole, atol=3e-6)


@pytest.mark.parametrize("block", [0, 8])
def test_a_segment_never_sees_another(block):
    grids = GRIDS["picture, video, picture"]
    given = feeds(grids, block)
    before = run(model(block), given)["out"]
    for segment in feature_ranges(grids, merge_unit=1):
        shouting = {**given, "qkv": given["qkv"].copy()}
        shouting["qkv"][segment] *= 1e4
        after = run(model(block), shouting)["out"]
        others = np.ones(len(before), dtype=bool)
        others[segment] = False
        np.testing.assert_array_equal(after[others], before[others])
        assert not np.array_equal(after[segment], before[segment])


def test_whole_segments_are_one_attention_without_mask():
    graph = model(0, "float16").graph
    assert top_level(graph) == [
        "Gather", "Split", "Cast", "RotaryEmbedding", "Cast", "Split", "Attention", "Reshape", "Gather",
    ]  # fmt: skip
    [attention] = [node for node in graph if node.op_type == "Attention"]
    names = [value.name if value else None for value in attention.inputs]
    assert names[3:] == [None, None, None, "key_count"], "no mask, no cache, only the lengths"
    assert "Cast" not in top_level(model(0).graph), "float32 needs no casts"


def test_blocks_are_a_scan_over_slices_of_the_keys():
    graph = model(64, "float16").graph
    assert [op for op in top_level(graph) if op in ("Scan", "Attention")] == ["Scan"]
    body = branch(graph, "query_block")
    assert len(body.inputs) == 3 and len(body.outputs) == 1, "nothing is carried from block to block"
    [attention] = [node for node in body if node.op_type == "Attention"]
    assert len([value for value in attention.inputs if value is not None]) == 3
    assert not any(node.op_type in ("Loop", "If") for node in nodes(graph))
