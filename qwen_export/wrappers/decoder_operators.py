"""The decoder's custom operators: three ideas that torch.export would shred.

Each has an eager implementation here (plain torch, so that the wrapper can be run and compared with Transformers), a
shape rule for tracing, and one pass that lowers it to standard operators. Shape letters: `qwen_export.model_config`;
C also the chunk, T' the tokens padded to whole chunks, Hk/Hv key/value heads of the linear layers, Dk/Dv their widths.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

L2_NORM_EPS = 1e-6
"""Fixed in upstream's delta rule; not the config's rms_norm_eps."""


@torch.library.custom_op("qwen_export::plan_step", mutates_args=())
def plan_step(
    inputs_embeds: Tensor, attention_mask: Tensor, chunk: int, max_length: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What every layer of one call needs to know about it, computed once.

    Args:
        inputs_embeds: [B, S, D].
        attention_mask: [B, T] int64.
        chunk: tokens per chunk of the delta rule.
        max_length: length L of a static KV cache; 0 for the growing one.

    Returns:
        single_step: bool scalar, S == 1.
        token_mask: [B, S, 1], model dtype; 0 at padding.
        chunk_index: [T'] int64, the token that fills each slot of whole chunks (the last one repeats).
        chunk_mask: [B, T', 1] float32; 0 at padding and at repeats.
        unpadded: bool scalar, no row has padding.
        attention_bias: [B, 1, S, T or L] model dtype, 0 where visible; causal and padding together.
        kv_length: [B] int64, tokens in the cache after this call (T); read by the static cache alone.
    """
    batch, length, _ = inputs_embeds.shape
    total = attention_mask.shape[1]
    device = inputs_embeds.device
    token_mask = attention_mask[:, total - length :, None].to(inputs_embeds.dtype)
    padded = -(-length // chunk) * chunk
    slots = torch.arange(padded, device=device)
    chunk_index = slots.clamp(max=length - 1)
    chunk_mask = token_mask.float()[:, chunk_index] * (slots < length)[None, :, None]
    query = torch.arange(total - length, total, device=device)[:, None]
    key = torch.arange(max_length or total, device=device)
    present = attention_mask[:, None, None, key.clamp(max=total - 1)] > 0
    visible = (key[None] <= query) & present
    bias = torch.where(visible, 0.0, torch.finfo(inputs_embeds.dtype).min).to(inputs_embeds.dtype)
    return (
        torch.tensor(length == 1, device=device),
        token_mask,
        chunk_index,
        chunk_mask,
        attention_mask.min() == 1,
        bias,
        torch.full((batch,), total, device=device),
    )


@plan_step.register_fake
def _(inputs_embeds, attention_mask, chunk, max_length):
    batch, length, _ = inputs_embeds.shape
    padded = (length + chunk - 1) // chunk * chunk
    new = inputs_embeds.new_empty
    return (
        new((), dtype=torch.bool),
        new((batch, length, 1)),
        new((padded,), dtype=torch.int64),
        new((batch, padded, 1), dtype=torch.float32),
        new((), dtype=torch.bool),
        new((batch, 1, length, max_length or attention_mask.shape[1])),
        new((batch,), dtype=torch.int64),
    )


@torch.library.custom_op("qwen_export::gated_delta_net", mutates_args=())
def gated_delta_net(
    qkv: Tensor,
    zba: Tensor,
    conv_state: Tensor,
    recurrent_state: Tensor,
    single_step: Tensor,
    token_mask: Tensor,
    chunk_index: Tensor,
    chunk_mask: Tensor,
    conv_weight: Tensor,
    gate_bias: Tensor,
    gate_scale: Tensor,
    norm_weight: Tensor,
    key_heads: int,
    value_heads: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Everything between the input and output projections of a Gated DeltaNet layer.

    Causal convolution with carried state, SiLU, l2 norms, gates, delta rule, gated norm. Float32 inside, whatever the
    model dtype. The masked projection equals upstream's masked hidden state because the projections have no bias.

    Args:
        qkv: [B, S, C] projected queries, keys and values, before the convolution.
        zba: [B, S, Hv*Dv + 2*Hv] output gate, then `-b`, then `a`; all projections of the same hidden state.
        conv_state: [B, C, K-1]; recurrent_state: [B, Hv, Dk, Dv] float32.
        single_step, token_mask, chunk_index, chunk_mask: from `plan_step`.
        conv_weight: [C, K]; gate_bias: [2*Hv], zeros then dt_bias; gate_scale: [2*Hv], -1 then -e^A_log (so that
            exp(softplus(zba + bias) * scale) is beta and the decay); norm_weight: [Dv]. All float32.
        eps: epsilon of the gated norm.

    Returns:
        [B, S, Hv*Dv] in the model dtype, present conv state, present recurrent state.
    """
    length, channels = qkv.shape[1:]
    value_dim = zba.shape[-1] - 2 * value_heads
    key_dim = (channels - value_dim) // 2
    window = torch.cat([conv_state, (qkv * token_mask).transpose(1, 2)], dim=2)
    mixed = F.silu(F.conv1d(window.float(), conv_weight.unsqueeze(1), groups=channels)).transpose(1, 2)
    query, key, value = mixed.split([key_dim, key_dim, value_dim], dim=-1)
    group = value_heads // key_heads
    query, key = (_l2_norm(x.unflatten(-1, (key_heads, -1))).repeat_interleave(group, dim=2) for x in (query, key))
    value = value.unflatten(-1, (value_heads, -1))
    gate, rates = zba.float().split([value_dim, 2 * value_heads], dim=-1)
    log_beta, log_decay = (F.softplus(rates + gate_bias) * gate_scale).split(value_heads, dim=-1)
    beta, decay = log_beta.exp(), log_decay.exp()
    state, outputs = recurrent_state, []
    for t in range(length):
        state = state * decay[:, t, :, None, None]
        read = (state * key[:, t, :, :, None]).sum(-2)
        delta = (value[:, t] - read) * (beta[:, t] * token_mask[:, t].float())[..., None]
        state = state + key[:, t, :, :, None] * delta[:, :, None]
        outputs.append((state * query[:, t, :, :, None]).sum(-2))
    out = torch.stack(outputs, dim=1) * query.shape[-1] ** -0.5
    out = F.rms_norm(out, (out.shape[-1],), norm_weight, eps).flatten(2) * F.silu(gate)
    return out.to(qkv.dtype), window[:, :, length:].clone(), state


@gated_delta_net.register_fake
def _(qkv, zba, conv_state, recurrent_state, *args):
    value_heads = args[-2]
    batch, length, _ = qkv.shape
    out = qkv.new_empty((batch, length, zba.shape[-1] - 2 * value_heads))
    return out, torch.empty_like(conv_state), torch.empty_like(recurrent_state)


def _l2_norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + L2_NORM_EPS)


@torch.library.custom_op("qwen_export::cached_attention", mutates_args=())
def cached_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_key: Tensor,
    past_value: Tensor,
    unpadded: Tensor,
    attention_bias: Tensor,
    kv_length: Tensor,
    num_heads: int,
    kv_heads: int,
    static: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Causal attention over the KV cache and the new tokens, grouped queries.

    Args:
        query: [B, S, N*H]; key, value: [B, S, G*H]; past_key, past_value: [B, G, P, H], or [B, G, L, H] when static.
        unpadded, attention_bias, kv_length: from `plan_step`.
        static: write the new tokens into the past buffers at kv_length - S instead of growing them.

    Returns:
        [B, S, N*H], present key and present value [B, G, P+S, H], or [B, G, L, H] when static.
    """
    keys, values = (
        _extend(past, new.unflatten(-1, (kv_heads, -1)).transpose(1, 2), kv_length, static)
        for past, new in ((past_key, key), (past_value, value))
    )
    queries = query.unflatten(-1, (num_heads, -1)).transpose(1, 2)
    group = num_heads // kv_heads
    scores = queries @ keys.repeat_interleave(group, dim=1).transpose(2, 3) * queries.shape[-1] ** -0.5
    weights = (scores + attention_bias).softmax(-1, dtype=torch.float32).to(query.dtype)
    out = weights @ values.repeat_interleave(group, dim=1)
    return out.transpose(1, 2).flatten(2), keys, values


def _extend(past: Tensor, new: Tensor, kv_length: Tensor, static: bool) -> Tensor:
    if not static:
        return torch.cat([past, new], dim=2)
    end = int(kv_length[0])
    out = past.clone()
    out[:, :, end - new.shape[2] : end] = new
    return out


@cached_attention.register_fake
def _(query, key, value, past_key, past_value, unpadded, attention_bias, kv_length, num_heads, kv_heads, static):
    batch, heads, past, width = past_key.shape
    shape = (batch, heads, past if static else past + query.shape[1], width)
    return torch.empty_like(query), past_key.new_empty(shape), past_value.new_empty(shape)
