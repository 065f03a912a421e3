"""Lower `vision_plan` to integer arithmetic over one table per call.

Before     place, extent, query_rows, key_start, key_end, key_count, slot = vision_plan(pixel_values, grid_thw; ...)
After      a table with one line per image; a row finds its image by counting the images that end before it, looks its
           line up once, and the rest is Div and Mod. Query blocks do the same.
Why        Upstream walks Python lists; torch's own spelling costs 400 nodes, and sizes that torch.export must guess.
           Counting is an R x M comparison; M is the number of images, never of patches.
Numerics   SAME: integers.
Declines   nothing; there is one such node per vision encoder, written by the prelude.

Rows are counted from the grids and not from `pixel_values`: where the two disagree, adding positions to patches fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from qwen_export.passes.standard_ops import StandardOps, lower_nodes

ONE = np.int64(1)


def lower_vision_plan(model: ir.Model) -> int:
    """Run the pass. Returns the number of nodes lowered."""
    return lower_nodes(model, "vision_plan", _lower)


@dataclass(frozen=True)
class Media:
    """What is known per image, and in all."""

    table: ir.Value
    """[M, 6 or 7]: see `COLUMNS`, then the query blocks per frame where there can be several."""
    row_ends: ir.Value
    """[M, 1] rows up to and with this image."""
    block_ends: ir.Value
    """[M, 1] query blocks up to and with this image."""
    num_rows: ir.Value
    num_blocks: ir.Value
    span: ir.Value
    """W, the slots of a query block. A scalar like the two counts."""


COLUMNS = (2, 1, 1, 1, 1)
"""Of the table: height and width, squares of patches per line, patches per frame, first row, first query block."""


def _lower(ops: StandardOps, node: ir.Node) -> Sequence[ir.Value]:
    grid = node.inputs[1]
    assert grid is not None
    merge, block = node.attributes["merge"].as_int(), node.attributes["block"].as_int()
    media = _media(ops, grid, merge, block)
    place, extent, slot = _rows(ops, media, merge, bool(block))
    return place, extent, *_query_blocks(ops, media, bool(block)), slot


def _media(ops: StandardOps, grid: ir.Value, merge: int, block: int) -> Media:
    frames, size = ops.Split(grid, ops.ints(1, 2), outputs=2, axis=1)
    height, width = ops.Split(size, ops.ints(1, 1), outputs=2, axis=1)
    area = ops.Mul(height, width)
    rows = ops.Mul(frames, area)
    row_ends = ops.CumSum(rows, np.int64(0))
    span = ops.ReduceMax(area, keepdims=0)
    blocks, more = frames, []
    if block:
        span = _ceil_div(ops, span, _ceil_div(ops, span, np.int64(block)))
        per_frame = _ceil_div(ops, area, span)
        blocks, more = ops.Mul(frames, per_frame), [per_frame]
    block_ends = ops.CumSum(blocks, np.int64(0))
    table = ops.Concat(
        size,
        ops.Div(width, np.int64(merge)),
        area,
        ops.Sub(row_ends, rows),
        ops.Sub(block_ends, blocks),
        *more,
        axis=1,
    )
    num_rows, num_blocks = ops.ReduceSum(rows, keepdims=0), ops.ReduceSum(blocks, keepdims=0)
    return Media(table, row_ends, block_ends, num_rows, num_blocks, span)


def _ceil_div(ops: StandardOps, value: ir.Value, divisor: ir.Value | np.int64) -> ir.Value:
    less_one = divisor - ONE if isinstance(divisor, np.int64) else ops.Sub(divisor, ONE)
    return ops.Div(ops.Add(value, less_one), divisor)


def _look_up(
    ops: StandardOps, media: Media, count: ir.Value, ends: ir.Value, blocked: bool
) -> tuple[ir.Value, Sequence[ir.Value]]:
    """The numbers 0 to count - 1 as [count, 1], and the table's columns [count, *] for each of them."""
    number = ops.Unsqueeze(ops.Range(np.int64(0), count, ONE), ops.ints(1))
    is_past = ops.GreaterOrEqual(number, ops.Reshape(ends, ops.ints(1, -1)))
    image = ops.ReduceSum(ops.Cast(is_past, to=ir.DataType.INT64), ops.ints(1), keepdims=0)
    widths = COLUMNS + (1,) * blocked
    columns = ops.Split(ops.Gather(media.table, image, axis=0), ops.ints(*widths), outputs=len(widths), axis=1)
    return number, columns


def _rows(ops: StandardOps, media: Media, merge: int, blocked: bool) -> Sequence[ir.Value]:
    number, columns = _look_up(ops, media, media.num_rows, media.row_ends, blocked)
    extent, squares_per_line, area, first_row, first_block = columns[:5]
    local = ops.Sub(number, first_row)
    frame, within = ops.Div(local, area), ops.Mod(local, area)
    # rows come square by square: row and column inside the square, and the square's own row and column
    inside = ops.Mod(ops.Div(within, ops.ints(merge, 1)), np.int64(merge))
    square = ops.Div(within, np.int64(merge * merge))
    squares = ops.Concat(ops.Div(square, squares_per_line), ops.Mod(square, squares_per_line), axis=1)
    place = ops.Add(ops.Mul(squares, np.int64(merge)), inside)
    block = ops.Mul(frame, columns[5]) if blocked else frame
    slot = ops.Add(ops.Mul(ops.Add(first_block, block), media.span), within)
    return place, extent, ops.Squeeze(slot, ops.ints(1))


def _query_blocks(ops: StandardOps, media: Media, blocked: bool) -> Sequence[ir.Value]:
    number, columns = _look_up(ops, media, media.num_blocks, media.block_ends, blocked)
    _, _, area, first_row, first_block = columns[:5]
    local = ops.Sub(number, first_block)
    frame = ops.Div(local, columns[5]) if blocked else local
    key_start = ops.Add(first_row, ops.Mul(frame, area))
    begin = ops.Add(key_start, ops.Mul(ops.Mod(local, columns[5]), media.span)) if blocked else key_start
    # beyond the last row there is nothing to gather; those slots are never read
    slots = ops.Add(begin, ops.Range(np.int64(0), media.span, ONE))
    query_rows = ops.Min(slots, ops.Sub(media.num_rows, ONE))
    return query_rows, key_start, ops.Add(key_start, area), ops.Squeeze(area, ops.ints(1))
