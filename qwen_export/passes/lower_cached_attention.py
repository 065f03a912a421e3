"""Lower `cached_attention` to one standard `Attention` over a growing or a static cache.

Before     out, present_key, present_value = cached_attention(q, k, v, past_key, past_value, unpadded, bias, kv_length)
After      growing: If(unpadded) { Attention(q, k, v, , past_key, past_value; is_causal=1) }
                    else         { Attention(q, k, v, bias, past_key, past_value) }
           static:  present = TensorScatter(past, new, kv_length - S), then
                    If(unpadded) { Attention(q, K, V, , , , kv_length; is_causal=1) } else { Attention(q, K, V, bias) }
           single-step graph: the static form's first branch, without If
Why        Any mask input keeps ONNX Runtime's CUDA provider from Flash attention and costs 2*B*N*S*T*4 bytes.
           Inputs of the growing form are [B, S, heads*H]: Flash then needs no transposes.
Numerics   SAME formula; the kernel's own order of summation.
Declines   nothing; the wrapper writes one such node per full-attention layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from qwen_export.passes.standard_ops import StandardOps, lower_nodes


def lower_cached_attention(model: ir.Model, single_step: bool = False) -> int:
    """Run the pass. `single_step`: S is 1 and no row is padded. Returns the number of nodes lowered."""

    def lowering(ops: StandardOps, node: ir.Node) -> Sequence[ir.Value]:
        if node.attributes["static"].as_int():
            return _static(ops, node, single_step)
        return _growing(ops, node)

    return lower_nodes(model, "cached_attention", lowering)


def _growing(ops: StandardOps, node: ir.Node) -> Sequence[ir.Value]:
    query, key, value, past_key, past_value, unpadded, bias, _ = node.inputs
    assert query is not None and query.dtype is not None
    dtype = query.dtype
    heads = {
        "q_num_heads": node.attributes["num_heads"].as_int(),
        "kv_num_heads": node.attributes["kv_heads"].as_int(),
    }

    def attention(inner: StandardOps, mask: ir.Value | None, **extra: int) -> Sequence[tuple[ir.Value, ir.DataType]]:
        out = inner.Attention(query, key, value, mask, past_key, past_value, outputs=3, **heads, **extra)
        return [(x, dtype) for x in out]

    return ops.If(
        unpadded,
        outputs=3,
        then_branch=ops.graph("unpadded", lambda inner: attention(inner, None, is_causal=1)),
        else_branch=ops.graph("padded", lambda inner: attention(inner, bias)),
    )


def _static(ops: StandardOps, node: ir.Node, single_step: bool) -> Sequence[ir.Value]:
    query, key, value, past_key, past_value, unpadded, bias, kv_length = node.inputs
    assert query is not None and key is not None and value is not None and query.dtype is not None
    dtype = query.dtype
    num_heads, kv_heads = node.attributes["num_heads"].as_int(), node.attributes["kv_heads"].as_int()
    # the cache is [B, G, L, H], so queries must be 4-D too; one token needs no Transpose for it
    query4, key4, value4 = (
        _by_head(ops, x, heads, single_step) for x, heads in ((query, num_heads), (key, kv_heads), (value, kv_heads))
    )
    start = ops.Sub(kv_length, ops.ints(1) if single_step else ops.Shape(query, start=1, end=2))
    keys, values = (
        ops.TensorScatter(past, new, start, axis=2) for past, new in ((past_key, key4), (past_value, value4))
    )
    if single_step:
        out = ops.Attention(query4, keys, values, None, None, None, kv_length, is_causal=1)
        return ops.Reshape(out, ops.ints(0, 1, -1)), keys, values
    out = ops.If(
        unpadded,
        then_branch=ops.graph(
            "unpadded",
            lambda i: [(i.Attention(query4, keys, values, None, None, None, kv_length, is_causal=1), dtype)],
        ),
        else_branch=ops.graph("padded", lambda i: [(i.Attention(query4, keys, values, bias), dtype)]),
    )
    width = query.shape[2]  # type: ignore[index]
    out = ops.Reshape(ops.Transpose(out, perm=[0, 2, 1, 3]), ops.ints(0, 0, int(width)))  # type: ignore[arg-type]
    return out, keys, values


def _by_head(ops: StandardOps, x: ir.Value, heads: int, single_step: bool) -> ir.Value:
    """[B, S, heads*H] -> [B, heads, S, H]."""
    if single_step:
        return ops.Reshape(x, ops.ints(0, heads, 1, -1))
    return ops.Transpose(ops.Reshape(x, ops.ints(0, 0, heads, -1)), perm=[0, 2, 1, 3])
