"""The vision encoder's custom operators: the geometry of a call, and attention of packed images.

Each has an eager implementation here (plain torch, so that the wrapper can be run and compared with Transformers), a
shape rule for tracing, and one pass that lowers it to standard operators. Shape letters: `qwen_export.model_config`;
here also C the vision width, and Q query blocks of W rows each.

A segment is one image or one frame group of a video: the rows that attend to each other. A query block is a run of at
most `block` rows of one segment, or the whole segment where `block` is 0; all blocks have W slots, the last ones of a
short block are never read. W divides the longest segment evenly: 1,064 rows in blocks of at most 1,024 are twice 532.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("qwen_export::vision_plan", mutates_args=())
def vision_plan(
    pixel_values: Tensor, grid_thw: Tensor, merge: int, block: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Where every patch row lies and what it attends to, computed once for all blocks. Integers only.

    Args:
        pixel_values: [R, ...], for its number of rows; the lowered graph counts them from the grids, so that a
            disagreement of the two ends in a shape error.
        grid_thw: [M, 3] int64.
        merge: side of the squares of patches whose rows follow each other.
        block: query rows per block, 0 for whole segments.

    Returns:
        place: [R, 2] row and column of the patch in its image.
        extent: [R, 2] height and width of that image.
        query_rows: [Q, W] the patch row in each slot of each query block; beyond the block's end any legal row.
        key_start, key_end: [Q, 1] the rows of the block's segment: first, and after the last.
        key_count: [Q] how many these are.
        slot: [R] where each patch row stands among the Q*W slots.
    """
    places: list[Tensor] = []
    extents: list[Tensor] = []
    blocks: list[Tensor] = []
    slots: list[Tensor] = []
    starts: list[int] = []
    counts: list[int] = []
    sizes = [(t, h, w) for t, h, w in grid_thw.tolist()]
    longest = max([h * w for _, h, w in sizes], default=1)
    slots_per_block = _ceil_div(longest, _ceil_div(longest, block)) if block else longest
    row = 0
    for frames, height, width in sizes:
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        place = torch.stack([y, x], dim=-1).unflatten(0, (-1, merge)).unflatten(2, (-1, merge))
        place = place.transpose(1, 2).reshape(-1, 2)
        for _ in range(frames):
            places.append(place)
            extents.append(torch.tensor([[height, width]]).expand(len(place), 2))
            for begin in range(0, len(place), slots_per_block):
                slots.append(len(blocks) * slots_per_block + torch.arange(min(slots_per_block, len(place) - begin)))
                blocks.append(row + begin + torch.arange(slots_per_block))
                starts.append(row)
                counts.append(len(place))
            row += len(place)
    if row != pixel_values.shape[0]:
        raise ValueError(f"image_grid_thw describes {row} patch rows, pixel_values has {pixel_values.shape[0]}.")
    empty = torch.zeros(0, dtype=torch.int64)
    out = (
        torch.cat([empty.reshape(0, 2), *places]),
        torch.cat([empty.reshape(0, 2), *extents]),
        torch.stack(blocks).clamp(max=row - 1) if blocks else empty.reshape(0, 1),
        torch.tensor(starts, dtype=torch.int64).unsqueeze(1),
        torch.tensor(starts, dtype=torch.int64).add(torch.tensor(counts, dtype=torch.int64)).unsqueeze(1),
        torch.tensor(counts, dtype=torch.int64),
        torch.cat([empty, *slots]),
    )
    a, b, c, d, e, f, g = (x.to(grid_thw.device) for x in out)
    return a, b, c, d, e, f, g


def _ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


@vision_plan.register_fake
def _(pixel_values, grid_thw, merge, block):
    context = torch.library.get_ctx()
    rows, blocks, width = pixel_values.shape[0], context.new_dynamic_size(), context.new_dynamic_size()
    shapes = ((rows, 2), (rows, 2), (blocks, width), (blocks, 1), (blocks, 1), (blocks,), (rows,))
    return tuple(grid_thw.new_empty(shape) for shape in shapes)


@torch.library.custom_op("qwen_export::packed_attention", mutates_args=())
def packed_attention(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    query_rows: Tensor,
    key_start: Tensor,
    key_end: Tensor,
    key_count: Tensor,
    slot: Tensor,
    num_heads: int,
    block: int,
) -> Tensor:
    """Rotary embedding and full attention of every segment to itself: all between two projections of a block.

    Args:
        qkv: [R, 3*C] queries, keys and values.
        cos, sin: float32 angles of half a head, per slot [Q, W, C/N/2] where `block` is 0, else per row [1, R, C/N/2].
        query_rows, key_start, key_end, key_count, slot: from `vision_plan`, made with the same `block`.

    Returns:
        [R, C] in the dtype of `qkv`.
    """
    cos, sin = (x[0] if block else x.flatten(0, 1)[slot] for x in (cos, sin))
    heads = qkv.unflatten(1, (3, num_heads, -1))
    # float32 through the rotation as upstream, one rounding after it
    query, key = (_rotate(heads[:, i].float(), cos, sin).to(qkv.dtype) for i in (0, 1))
    out = [qkv.new_empty(0, qkv.shape[1] // 3)]
    for rows, start, end in zip(query_rows, key_start, key_end, strict=True):
        scores = torch.einsum("qhd,khd->hqk", query[rows], key[start:end]) * query.shape[-1] ** -0.5
        weights = scores.softmax(-1, dtype=torch.float32).to(qkv.dtype)
        out.append(torch.einsum("hqk,khd->qhd", weights, heads[start:end, 2]).flatten(1))
    return torch.cat(out)[slot]


@packed_attention.register_fake
def _(qkv, cos, sin, query_rows, key_start, key_end, key_count, slot, num_heads, block):
    return qkv.new_empty((qkv.shape[0], qkv.shape[1] // 3))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
