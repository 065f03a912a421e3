"""Lower `cached_attention` to one standard `Attention` with past and present.

Before     out, present_key, present_value = cached_attention(q, k, v, past_key, past_value, unpadded, bias)
After      If(unpadded) { Attention(q, k, v, , past_key, past_value; is_causal=1) }
           else         { Attention(q, k, v, bias, past_key, past_value) }
Why        Any mask input keeps ONNX Runtime's CUDA provider from Flash attention and costs 2*B*N*S*T*4 bytes.
           Inputs are [B, S, heads*H]: Flash then needs no transposes.
Numerics   SAME formula; the kernel's own order of summation.
Declines   nothing; the wrapper writes one such node per full-attention layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from qwen_export.passes.standard_ops import StandardOps, lower_nodes


def lower_cached_attention(model: ir.Model) -> int:
    """Run the pass. Returns the number of nodes lowered."""
    return lower_nodes(model, "cached_attention", _lower)


def _lower(ops: StandardOps, node: ir.Node) -> Sequence[ir.Value]:
    query, key, value, past_key, past_value, unpadded, bias = node.inputs
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
