"""Lower `packed_attention` to one `Attention` over padded segments, or to a Scan over query blocks.

Before     y = packed_attention(qkv, cos, sin, query_rows, key_start, key_end, key_count, slot; num_heads, block)
After      block 0: gather to [segments, longest, 3*C], rotate queries and keys together, `Attention` with
           nonpad_kv_seqlen and no mask, gather back
           block n: rotate the rows; Scan over query blocks, each against the rows of its own segment; gather back
Why        Never an R x R mask: any mask keeps ONNX Runtime's CUDA provider from Flash attention. Its CPU provider
           writes heads * queries * keys numbers out, so there the queries come in blocks, and the keys of a segment
           are a slice: no segment pays for the longest one.
Numerics   SAME formula; the kernel's own order of summation. The rotation is in float32, rounded once after it.
           `softmax_precision` stays unset: kernels sum in float32 anyhow, and older CUDA ones refuse the attribute.
Declines   nothing; the wrapper writes one such node per transformer block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from qwen_export.passes.standard_ops import StandardOps, lower_nodes

FLOAT = ir.DataType.FLOAT


def lower_packed_attention(model: ir.Model) -> int:
    """Run the pass. Returns the number of nodes lowered."""
    return lower_nodes(model, "packed_attention", _lower)


@dataclass(frozen=True)
class Heads:
    """The sizes the config fixes."""

    count: int
    width: int
    """C: all heads together."""
    dtype: ir.DataType

    @property
    def attributes(self) -> dict[str, int]:
        return {"q_num_heads": self.count, "kv_num_heads": self.count}


def _lower(ops: StandardOps, node: ir.Node) -> Sequence[ir.Value]:
    qkv, cos, sin, query_rows, key_start, key_end, key_count, slot = node.inputs
    assert qkv is not None and qkv.shape is not None and qkv.dtype is not None
    assert cos is not None and sin is not None
    heads = Heads(node.attributes["num_heads"].as_int(), int(qkv.shape[1]) // 3, qkv.dtype)  # type: ignore[arg-type]
    if node.attributes["block"].as_int():
        query, key, value = _rotated(ops, ops.Unsqueeze(qkv, ops.ints(0)), cos, sin, heads)
        mixed = _block_by_block(ops, (query, key, value), (query_rows, key_start, key_end), heads)
    else:
        query, key, value = _rotated(ops, ops.Gather(qkv, query_rows, axis=0), cos, sin, heads)
        mixed = ops.Attention(query, key, value, None, None, None, key_count, **heads.attributes)
    return [ops.Gather(ops.Reshape(mixed, ops.ints(-1, heads.width)), slot, axis=0)]


def _rotated(
    ops: StandardOps, qkv: ir.Value, cos: ir.Value, sin: ir.Value, heads: Heads
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Queries, keys and values [*, *, C]; queries and keys turn alike, so they turn as twice the heads."""
    both, value = ops.Split(qkv, ops.ints(2 * heads.width, heads.width), outputs=2, axis=-1)
    both = ops.RotaryEmbedding(ops.cast(both, FLOAT, heads.dtype), cos, sin, num_heads=2 * heads.count)
    both = ops.cast(both, heads.dtype, FLOAT)
    query, key = ops.Split(both, ops.ints(heads.width, heads.width), outputs=2, axis=-1)
    return query, key, value


def _block_by_block(
    ops: StandardOps, rows: Sequence[ir.Value], plan: Sequence[ir.Value | None], heads: Heads
) -> ir.Value:
    """All query blocks [Q, 1, W, C]; keys and values are outer values of the body."""
    query, key, value = rows
    int64 = ir.TensorType(ir.DataType.INT64)
    wanted, start, end = (
        ir.Value(name=name, type=int64, shape=ir.Shape(shape))
        for name, shape in (("query_rows", ["block_slots"]), ("key_start", [1]), ("key_end", [1]))
    )

    def body(inner: StandardOps) -> Sequence[tuple[ir.Value, ir.DataType]]:
        keys, values = (inner.Slice(x, start, end, inner.ints(1)) for x in (key, value))
        # a slice of unknown length has no known axis at all; ONNX's shape rule for Attention then takes its width for 0
        values = inner.Reshape(values, inner.ints(1, -1, heads.width))
        mixed = inner.Attention(inner.Gather(query, wanted, axis=1), keys, values, **heads.attributes)
        return [(mixed, heads.dtype)]

    return ops.Scan(*plan, num_scan_inputs=3, body=ops.graph("query_block", body, inputs=(wanted, start, end)))
