"""The decoder in float64, token by token, written from the formulas alone: the judge.

Where our graph and Transformers differ by more than a tolerance, the distance of each to this one says whose error it
is. It shares no code with the wrappers: no chunks, no fused projections, no folded norms.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_export.model_config import LINEAR_ATTENTION, TextConfig

ROOT = "model.language_model."
L2_EPS = 1e-6


class ReferenceDecoder:
    """Call it with one slice of tokens after another; it keeps its states under the contract's `present.*` names."""

    def __init__(self, config: TextConfig, tensors: Mapping[str, Tensor]) -> None:
        self.config = config
        self.weights = {key: value.double() for key, value in tensors.items()}
        self.states: dict[str, Tensor] = {}

    def __call__(self, embeds: np.ndarray, mask: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """embeds [B, S, D], mask [B, T], positions [3, B, S] to logits [B, S, V]."""
        x = torch.tensor(embeds).double()
        visible = torch.tensor(mask).double()
        angles = self._angles(torch.tensor(positions))
        for layer, kind in enumerate(self.config.layer_types):
            prefix = f"{ROOT}layers.{layer}."
            h = self._norm(x, 1 + self.weights[prefix + "input_layernorm.weight"])
            if kind == LINEAR_ATTENTION:
                x = x + self._delta_net(layer, h * visible[:, -h.shape[1] :, None])
            else:
                x = x + self._attention(layer, h, visible, angles)
            h = self._norm(x, 1 + self.weights[prefix + "post_attention_layernorm.weight"])
            gate, up = self._linear(h, prefix + "mlp.gate_proj"), self._linear(h, prefix + "mlp.up_proj")
            x = x + self._linear(F.silu(gate) * up, prefix + "mlp.down_proj")
        x = self._norm(x, 1 + self.weights[f"{ROOT}norm.weight"])
        return self._linear(x, "lm_head").numpy()

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[name + ".weight"].T

    def _norm(self, x: Tensor, scale: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config.rms_norm_eps) * scale

    def _angles(self, positions: Tensor) -> Tensor:
        """[B, S, rotary/2]: frequency j turns with height if j = 1 (mod 3), width if j = 2, while their share lasts."""
        half, sections = self.config.rotary_dim // 2, self.config.mrope_section
        out = torch.empty(*positions.shape[1:], half, dtype=torch.float64)
        for j in range(half):
            axis = j % 3 if j % 3 and j < 3 * sections[j % 3] else 0
            out[..., j] = positions[axis].double() / self.config.rope_theta ** (2 * j / self.config.rotary_dim)
        return out

    def _delta_net(self, layer: int, h: Tensor) -> Tensor:
        c, prefix, length = self.config, f"{ROOT}layers.{layer}.linear_attn.", h.shape[1]
        past = h.new_zeros(h.shape[0], c.conv_dim, c.linear_conv_kernel_dim - 1)
        conv_state = self.states.get(f"present.{layer}.conv_state", past)
        window = torch.cat([conv_state, self._linear(h, prefix + "in_proj_qkv").transpose(1, 2)], 2)
        self.states[f"present.{layer}.conv_state"] = window[:, :, length:]
        mixed = F.silu(F.conv1d(window, self.weights[prefix + "conv1d.weight"], groups=c.conv_dim)).transpose(1, 2)
        query, key, value = mixed.split([c.key_dim, c.key_dim, c.value_dim], -1)
        served = c.linear_num_value_heads // c.linear_num_key_heads
        query, key = (
            _unit(x.unflatten(-1, (c.linear_num_key_heads, -1))).repeat_interleave(served, 2) for x in (query, key)
        )
        value = value.unflatten(-1, (c.linear_num_value_heads, -1))
        beta = self._linear(h, prefix + "in_proj_b").sigmoid()
        rate = F.softplus(self._linear(h, prefix + "in_proj_a") + self.weights[prefix + "dt_bias"])
        decay = (-self.weights[prefix + "A_log"].exp() * rate).exp()
        empty = h.new_zeros(h.shape[0], c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim)
        state = self.states.get(f"present.{layer}.recurrent_state", empty)
        out, state = delta_rule(query * c.linear_key_head_dim**-0.5, key, value, beta, decay, state)
        self.states[f"present.{layer}.recurrent_state"] = state
        gate = F.silu(self._linear(h, prefix + "in_proj_z").unflatten(-1, (c.linear_num_value_heads, -1)))
        return self._linear(
            (self._norm(out, self.weights[prefix + "norm.weight"]) * gate).flatten(2), prefix + "out_proj"
        )

    def _attention(self, layer: int, h: Tensor, visible: Tensor, angles: Tensor) -> Tensor:
        c, prefix, length = self.config, f"{ROOT}layers.{layer}.self_attn.", h.shape[1]
        query, gate = self._linear(h, prefix + "q_proj").unflatten(-1, (c.num_attention_heads, -1)).chunk(2, -1)
        key, value = (
            self._linear(h, prefix + name).unflatten(-1, (c.num_key_value_heads, -1)) for name in ("k_proj", "v_proj")
        )
        query = self._turn(self._norm(query, 1 + self.weights[prefix + "q_norm.weight"]), angles).transpose(1, 2)
        key = self._turn(self._norm(key, 1 + self.weights[prefix + "k_norm.weight"]), angles).transpose(1, 2)
        for name, new in (("key", key), ("value", value.transpose(1, 2))):
            past = self.states.get(f"present.{layer}.{name}", new[:, :, :0])
            self.states[f"present.{layer}.{name}"] = torch.cat([past, new], 2)
        keys, values = (
            self.states[f"present.{layer}.{name}"].repeat_interleave(c.num_attention_heads // c.num_key_value_heads, 1)
            for name in ("key", "value")
        )
        total = keys.shape[2]
        causal = torch.arange(total)[None] <= torch.arange(total - length, total)[:, None]
        seen = causal & (visible[:, None, None] > 0)
        scores = (query @ keys.transpose(2, 3) * c.head_dim**-0.5).masked_fill(~seen, -1e300)
        mixed = (scores.softmax(-1) @ values).transpose(1, 2)
        return self._linear((mixed * gate.sigmoid()).flatten(2), prefix + "o_proj")

    def _turn(self, x: Tensor, angles: Tensor) -> Tensor:
        half = self.config.rotary_dim // 2
        first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        cos, sin = angles.cos()[:, :, None], angles.sin()[:, :, None]
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


def delta_rule(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The gated delta rule, one token after another. All [B, S, heads, width], gates [B, S, heads]."""
    out = []
    for t in range(query.shape[1]):
        state = state * decay[:, t, :, None, None]
        wrong = value[:, t] - (state * key[:, t, :, :, None]).sum(-2)
        state = state + key[:, t, :, :, None] * (wrong * beta[:, t, :, None])[:, :, None]
        out.append((state * query[:, t, :, :, None]).sum(-2))
    return torch.stack(out, 1), state


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + L2_EPS)
