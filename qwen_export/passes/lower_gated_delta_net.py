"""Lower `gated_delta_net`: one step for a single token, whole chunks and a Scan over them otherwise.

Before     out, conv_state', state' = gated_delta_net(qkv, zba, conv_state, state, plan..., weights...)
After      If(single_step) { one step of the delta rule }
           else            { chunk matrices, batched; Scan that carries only the state: S' = M S + B; outputs, batched }
Why        A loop over tokens is 10 to 20 times slower; an unrolled one freezes the length. Per chunk the Scan body is
           one product and one sum, everything else runs over all chunks at once; docs/design.md has the derivation.
Numerics   CHANGES ROUNDING: float32 inside. The triangular inverse is built by merging blocks, which stays exact to
           1e-6 on identical keys, where squaring the nilpotent matrix gives NaN.
Declines   nothing; the wrapper writes one such node per Gated DeltaNet layer.

Every read of a past state comes before its present is produced, by data dependency: the buffers may be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from qwen_export.passes.standard_ops import StandardOps, lower_nodes
from qwen_export.wrappers.decoder_operators import L2_NORM_EPS

FLOAT = ir.DataType.FLOAT
TO_THE_END = np.iinfo(np.int64).max


def lower_gated_delta_net(model: ir.Model, chunk: int, single_step: bool = False) -> int:
    """Run the pass. Returns the number of nodes lowered.

    Args:
        chunk: tokens per chunk, a power of two.
        single_step: for the graph that only ever sees one token: the step alone, without If.
    """
    if single_step:
        return lower_nodes(model, "gated_delta_net", lambda ops, node: step(ops, _read(node)))
    return lower_nodes(model, "gated_delta_net", lambda ops, node: _lower(ops, node, chunk))


@dataclass(frozen=True)
class Layer:
    """The node's inputs by name, and the sizes the config fixes."""

    qkv: ir.Value
    zba: ir.Value
    conv_state: ir.Value
    state: ir.Value
    single_step: ir.Value
    token_mask: ir.Value
    chunk_index: ir.Value
    chunk_mask: ir.Value
    conv_weight: ir.Value
    gate_bias: ir.Value
    gate_scale: ir.Value
    norm_weight: ir.Value
    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    kernel: int
    eps: float
    dtype: ir.DataType

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_width + self.value_dim

    @property
    def value_dim(self) -> int:
        return self.value_heads * self.value_width

    @property
    def group(self) -> int:
        """Value heads served by one key head."""
        return self.value_heads // self.key_heads

    @property
    def norm_eps(self) -> float:
        """Upstream divides queries by sqrt(Dk), here they keep unit length: RMS norm undoes it but for epsilon."""
        return self.eps * self.key_width


def _lower(ops: StandardOps, node: ir.Node, chunk: int) -> Sequence[ir.Value]:
    layer = _read(node)
    return ops.If(
        layer.single_step,
        outputs=3,
        then_branch=ops.graph("step", lambda inner: _typed(layer, step(inner, layer))),
        else_branch=ops.graph("chunks", lambda inner: _typed(layer, chunks(inner, layer, chunk))),
    )


def _read(node: ir.Node) -> Layer:
    inputs = node.inputs
    qkv, state, conv_weight = inputs[0], inputs[3], inputs[8]
    assert qkv is not None and state is not None and conv_weight is not None
    assert qkv.dtype is not None and state.shape is not None and conv_weight.shape is not None
    widths = [int(state.shape[axis]) for axis in (2, 3)]  # type: ignore[arg-type]
    return Layer(  # type: ignore[misc]
        *inputs,  # type: ignore[arg-type]
        key_heads=node.attributes["key_heads"].as_int(),
        value_heads=node.attributes["value_heads"].as_int(),
        key_width=widths[0],
        value_width=widths[1],
        kernel=int(conv_weight.shape[1]),  # type: ignore[arg-type]
        eps=node.attributes["eps"].as_float(),
        dtype=qkv.dtype,
    )


def _typed(layer: Layer, outputs: Sequence[ir.Value]) -> Sequence[tuple[ir.Value, ir.DataType]]:
    return list(zip(outputs, (layer.dtype, layer.dtype, FLOAT), strict=True))


def _l2_norm(ops: StandardOps, x: ir.Value, width: int) -> ir.Value:
    """x / sqrt(sum x^2 + eps) as the one operator that does it: RMS norm with scale 1/sqrt(width)."""
    scale = np.full(width, width**-0.5, dtype=np.float32)
    return ops.RMSNormalization(x, scale, axis=-1, epsilon=L2_NORM_EPS / width)


def step(ops: StandardOps, layer: Layer) -> Sequence[ir.Value]:
    """One token: [B, 1, C] in, [B, 1, Hv*Dv] out. No operation here but those the recurrence needs."""
    heads, groups = layer.value_heads, 2 * layer.key_heads
    token = ops.Reshape(layer.qkv, ops.ints(0, layer.channels, 1))
    window = ops.Concat(layer.conv_state, token, axis=2)
    conv_state = ops.Slice(window, ops.ints(1), ops.ints(TO_THE_END), ops.ints(2))
    mixed = ops.Squeeze(ops.silu(_conv(ops, layer, window)), ops.ints(2))
    qk, value = ops.Split(mixed, ops.ints(layer.channels - layer.value_dim, layer.value_dim), axis=1, outputs=2)
    qk = _l2_norm(ops, ops.Reshape(qk, ops.ints(0, groups, layer.key_width)), layer.key_width)
    served = np.arange(heads, dtype=np.int64) // layer.group
    query = ops.Unsqueeze(ops.Gather(qk, served, axis=1), ops.ints(2))
    key = ops.Gather(qk, served + layer.key_heads, axis=1)
    gate, rates = _split_gates(ops, layer)
    beta, decay = ops.Split(ops.Exp(rates), axis=2, num_outputs=2, outputs=2)
    beta, decay = (ops.Reshape(x, ops.ints(0, heads, 1, 1)) for x in (beta, decay))
    decayed = ops.Mul(layer.state, decay)
    read = ops.MatMul(ops.Unsqueeze(key, ops.ints(2)), decayed)
    value = ops.Reshape(value, ops.ints(0, heads, 1, layer.value_width))
    delta = ops.Mul(ops.Sub(value, read), beta)
    state = ops.Add(decayed, ops.Mul(ops.Unsqueeze(key, ops.ints(3)), delta))
    out = ops.RMSNormalization(ops.MatMul(query, state), layer.norm_weight, axis=-1, epsilon=layer.norm_eps)
    out = ops.Mul(ops.Reshape(out, ops.ints(0, 1, layer.value_dim)), ops.silu(gate))
    return ops.cast(out, layer.dtype, FLOAT), conv_state, state


def _split_gates(ops: StandardOps, layer: Layer) -> tuple[ir.Value, ir.Value]:
    """Output gate z [B, S, Hv*Dv] and log beta, log decay [B, S, 2*Hv], float32."""
    sizes = ops.ints(layer.value_dim, 2 * layer.value_heads)
    gate, rates = ops.Split(ops.cast(layer.zba, FLOAT, layer.dtype), sizes, axis=2, outputs=2)
    return gate, ops.Mul(ops.Softplus(ops.Add(rates, layer.gate_bias)), layer.gate_scale)


def chunks(ops: StandardOps, layer: Layer, chunk: int) -> Sequence[ir.Value]:
    """Many tokens, padded to whole chunks [N, B, heads, chunk, width]; N, the number of chunks, leads for the Scan."""
    length = ops.Shape(layer.qkv, start=1, end=2)
    mixed, conv_state = _convolve(ops, layer, length)
    key_dim = layer.key_heads * layer.key_width
    qk, value = ops.Split(mixed, ops.ints(2 * key_dim, layer.value_dim), axis=1, outputs=2)
    qk = _l2_norm(ops, _to_chunks(ops, qk, 2 * layer.key_heads, layer.key_width, chunk), layer.key_width)
    query, key = ops.Split(qk, axis=2, num_outputs=2, outputs=2)
    value = _to_chunks(ops, value, layer.value_heads, layer.value_width, chunk)
    gate, rates = _split_gates(ops, layer)
    beta, log_decay = _chunk_gates(ops, layer, rates, chunk)
    states, state, within = _delta_rule(ops, layer, query, key, value, beta, log_decay, chunk)
    out = ops.Add(ops.MatMul(states[0], states[1]), within)
    out = ops.RMSNormalization(out, layer.norm_weight, axis=-1, epsilon=layer.norm_eps)
    out = ops.Reshape(ops.Transpose(out, perm=[1, 0, 3, 2, 4]), ops.ints(0, -1, layer.value_dim))
    out = ops.Slice(out, ops.ints(0), length, ops.ints(1))
    return ops.cast(ops.Mul(out, ops.silu(gate)), layer.dtype, FLOAT), conv_state, state


def _convolve(ops: StandardOps, layer: Layer, length: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Depthwise causal convolution and SiLU: [B, C, T'] float32, and the present conv state.

    The tokens that fill the last chunk repeat the last one; gates of 0 keep them out of the state.
    """
    tokens = ops.Gather(ops.Mul(layer.qkv, layer.token_mask), layer.chunk_index, axis=1)
    window = ops.Concat(layer.conv_state, ops.Transpose(tokens, perm=[0, 2, 1]), axis=2)
    end = ops.Add(length, ops.ints(layer.kernel - 1))
    conv_state = ops.Slice(window, length, end, ops.ints(2))
    return ops.silu(_conv(ops, layer, window)), conv_state


def _conv(ops: StandardOps, layer: Layer, window: ir.Value) -> ir.Value:
    """Each channel's own kernel over [B, C, K-1+tokens], in float32: [B, C, tokens]."""
    weight = ops.Unsqueeze(layer.conv_weight, ops.ints(1))
    window = ops.cast(window, FLOAT, layer.dtype)
    return ops.Conv(window, weight, group=layer.channels, kernel_shape=[layer.kernel])


def _to_chunks(ops: StandardOps, x: ir.Value, heads: int, width: int, chunk: int) -> ir.Value:
    """[B, heads*width, T'] -> [N, B, heads, chunk, width]."""
    x = ops.Reshape(x, ops.ints(0, heads, width, -1, chunk))
    return ops.Transpose(x, perm=[3, 0, 1, 4, 2])


def _chunk_gates(ops: StandardOps, layer: Layer, rates: ir.Value, chunk: int) -> tuple[ir.Value, ir.Value]:
    """beta and log decay, both [N, B, Hv, chunk]; 0 at padding and at repeats."""
    rates = ops.Gather(rates, layer.chunk_index, axis=1)
    log_beta, log_decay = ops.Split(rates, axis=2, num_outputs=2, outputs=2)
    both = []
    for x in (ops.Exp(log_beta), log_decay):
        x = ops.Reshape(ops.Mul(x, layer.chunk_mask), ops.ints(0, -1, chunk, layer.value_heads))
        both.append(ops.Transpose(x, perm=[1, 0, 3, 2]))
    return both[0], both[1]


def _delta_rule(
    ops: StandardOps,
    layer: Layer,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    beta: ir.Value,
    log_decay: ir.Value,
    chunk: int,
) -> tuple[tuple[ir.Value, ir.Value], ir.Value, ir.Value]:
    """The chunked rule. Returns ((Q, S per chunk), final S, within) with the output being Q S + within.

    With G the decay since the chunk began, D_ij = G_i / G_j below the diagonal, X = (I + tril(beta k kT D, -1))^-1:
    U = X (beta v), W = X (beta G k); M = G_last I - kdT W and B = kdT U with kd = k G_last / G;
    Q = G q - tril(q kT D) W, within = tril(q kT D) U.
    """
    key_shape = ops.ints(0, 0, layer.key_heads, layer.group * chunk, -1)
    per_value_head = ops.ints(0, 0, layer.value_heads, chunk, -1)
    grouped = ops.ints(0, 0, layer.key_heads, layer.group, chunk, -1)
    total = ops.CumSum(log_decay, np.int64(3))
    column, row = ops.Unsqueeze(total, ops.ints(4)), ops.Unsqueeze(total, ops.ints(3))
    # masked before Exp: above the diagonal the exponent is positive and would overflow
    above = np.triu(np.full((chunk, chunk), -1e30, dtype=np.float32), 1)
    pair_decay = ops.Reshape(ops.Exp(ops.Add(ops.Sub(column, row), above)), grouped)
    turned = ops.Transpose(key, perm=[0, 1, 2, 4, 3])
    # products of keys and queries once per key head, then spread over its value heads
    key_key, query_key = (
        ops.Reshape(ops.Mul(ops.Unsqueeze(ops.MatMul(x, turned), ops.ints(3)), pair_decay), per_value_head)
        for x in (key, query)
    )
    inverse = _unit_lower_inverse(ops, ops.Mul(key_key, ops.Unsqueeze(beta, ops.ints(4))), chunk)
    inverse = ops.Mul(inverse, ops.Unsqueeze(beta, ops.ints(3)))
    grown = ops.Exp(total)
    u = ops.MatMul(inverse, value)
    w = ops.MatMul(ops.Reshape(ops.Mul(inverse, ops.Unsqueeze(grown, ops.ints(3))), key_shape), key)
    w = ops.Reshape(w, per_value_head)
    last = ops.Slice(total, ops.ints(-1), ops.ints(TO_THE_END), ops.ints(3))
    left = ops.Exp(ops.Sub(last, total))
    decayed_key = _per_value_head(ops, layer, key, left, chunk)
    decayed_key = ops.Transpose(decayed_key, perm=[0, 1, 2, 4, 3])
    eye = np.eye(layer.key_width, dtype=np.float32)
    carry = ops.Sub(ops.Mul(ops.Unsqueeze(ops.Exp(last), ops.ints(4)), eye), ops.MatMul(decayed_key, w))
    state, states = _scan(ops, layer, carry, ops.MatMul(decayed_key, u))
    queries = ops.Sub(_per_value_head(ops, layer, query, grown, chunk), ops.MatMul(query_key, w))
    return (queries, states), state, ops.MatMul(query_key, u)


def _per_value_head(ops: StandardOps, layer: Layer, x: ir.Value, factor: ir.Value, chunk: int) -> ir.Value:
    """Key-head rows [N, B, Hk, chunk, Dk] times a factor per value head and token [N, B, Hv, chunk]."""
    factor = ops.Reshape(factor, ops.ints(0, 0, layer.key_heads, layer.group, chunk, 1))
    spread = ops.Mul(ops.Unsqueeze(x, ops.ints(3)), factor)
    return ops.Reshape(spread, ops.ints(0, 0, layer.value_heads, chunk, layer.key_width))


def _unit_lower_inverse(ops: StandardOps, lower: ir.Value, chunk: int) -> ir.Value:
    """(I + tril(lower, -1))^-1 by merging blocks of 2, 4, ... chunk: X <- X - X (L * off-diagonal blocks) X."""
    inverse = ops.Sub(np.eye(chunk, dtype=np.float32), ops.Mul(lower, _merged_blocks(chunk, 1)))
    width = 2
    while width < chunk:
        off_diagonal = ops.Mul(lower, _merged_blocks(chunk, width))
        inverse = ops.Sub(inverse, ops.MatMul(ops.MatMul(inverse, off_diagonal), inverse))
        width *= 2
    return inverse


def _merged_blocks(chunk: int, width: int) -> np.ndarray:
    """1 where a block of 2*width holds what its two diagonal blocks of `width` do not, below the diagonal."""
    row, column = np.indices((chunk, chunk))
    inside = (row // (2 * width) == column // (2 * width)) & (row // width != column // width)
    return (inside & (row > column)).astype(np.float32)


def _scan(ops: StandardOps, layer: Layer, carry: ir.Value, new: ir.Value) -> tuple[ir.Value, ir.Value]:
    """S' = M S + B over the chunks: final state, and the state before each chunk."""
    inputs = [ir.Value(name=name, type=ir.TensorType(FLOAT)) for name in ("state_in", "carry_in", "new_in")]

    def body(inner: StandardOps) -> Sequence[tuple[ir.Value, ir.DataType]]:
        state, chunk_carry, chunk_new = inputs
        # the copy comes first and the product reads the copy: the final state may share its buffer with the past one
        before = inner.Identity(state)
        return [(inner.Add(inner.MatMul(chunk_carry, before), chunk_new), FLOAT), (before, FLOAT)]

    return ops.Scan(layer.state, carry, new, outputs=2, body=ops.graph("carry_state", body, inputs), num_scan_inputs=2)
