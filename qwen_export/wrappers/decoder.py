"""The decoder, cut into pieces that are traced alone: prelude, one layer of each kind, head.

`DecoderWrapper` puts the pieces together again: that is the module the contract describes, it runs eagerly, and its
whole trace is what the stamped graph is compared with. Shape letters: `qwen_export.model_config`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qwen_export import bindings as b
from qwen_export.bindings import Binding, Part
from qwen_export.contract import FLOAT32
from qwen_export.model_config import FULL_ATTENTION, LINEAR_ATTENTION, ModelConfig, TextConfig
from qwen_export.recipe import Recipe
from qwen_export.wrappers import decoder_operators as op
from qwen_export.wrappers.piece import Piece

LANGUAGE_MODEL = "model.language_model."


def layer_prefix(layer: int) -> str:
    """Canonical checkpoint prefix of one decoder layer."""
    return f"{LANGUAGE_MODEL}layers.{layer}."


class DecoderPrelude(Piece):
    """What all layers share: the plan of the step, and the rotary angles of its positions."""

    def __init__(self, upstream: Mapping[str, Tensor], config: ModelConfig, recipe: Recipe, text: bool) -> None:
        """Args: upstream: `embed_tokens.weight` for the text-only graph, else any tensor for its device."""
        super().__init__(upstream if text else {}, LANGUAGE_MODEL)
        self.recipe = recipe
        self.dtype = getattr(torch, recipe.tensor_dtype)
        if text:
            shape = (config.text.vocab_size, config.text.hidden_size)
            key = f"{LANGUAGE_MODEL}embed_tokens.weight"
            self.weight("embed_tokens", Binding((Part(key),), recipe.tensor_dtype, shape))
        else:
            self._upstream = dict(upstream)
        self.constant("inv_freq", rotary_frequencies(config.text))
        self.constant("position_axis", rotary_axes(config.text))
        self.sealed()

    def forward(self, tokens: Tensor, attention_mask: Tensor, position_ids: Tensor) -> tuple[Tensor, ...]:
        """Args: tokens: [B, S, D] embeddings, or [B, S] ids in the text-only graph.

        Returns: hidden state [B, S, D], cos and sin [B, S, rotary/2] float32, then the plan.
        """
        embeds = F.embedding(tokens, self.embed_tokens) if hasattr(self, "embed_tokens") else tokens
        plan = op.plan_step(embeds, attention_mask, self.recipe.effective_chunk_size, self.recipe.max_length)
        # angles in float32 from the integers: half precision loses whole radians at long positions
        angles = position_ids.index_select(0, self.position_axis).permute(1, 2, 0).float() * self.inv_freq
        hidden = embeds.float() if self.recipe.residual == "float32" else embeds
        return hidden, angles.cos(), angles.sin(), *plan


def rotary_frequencies(config: TextConfig) -> np.ndarray:
    """Inverse frequencies [rotary/2], float32, in upstream's own order of operations."""
    exponent = torch.arange(0, config.rotary_dim, 2, dtype=torch.float) / config.rotary_dim
    return (1.0 / (config.rope_theta**exponent)).numpy()


def rotary_axes(config: TextConfig) -> np.ndarray:
    """Which position row (0 temporal, 1 height, 2 width) turns each frequency: interleaved M-RoPE."""
    axes = np.zeros(config.rotary_dim // 2, dtype=np.int64)
    for axis in (1, 2):
        axes[axis : config.mrope_section[axis] * 3 : 3] = axis
    return axes


class DecoderLayer(Piece):
    """What both kinds of layer have: two norms, the gated MLP, the residual stream."""

    def __init__(self, upstream: Mapping[str, Tensor], layer: int, config: ModelConfig, recipe: Recipe) -> None:
        super().__init__(upstream, layer_prefix(layer))
        self.prefix = layer_prefix(layer)
        self.config = config.text
        self.dtype = getattr(torch, recipe.tensor_dtype)
        self.stored = recipe.tensor_dtype
        self.static = recipe.kv_cache == "static"

    def mlp_weights(self) -> None:
        """Declare the weights after the token mixer."""
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        self.norm_weight("post_attention_layernorm", hidden)
        for name, out_features, in_features in (
            ("gate_proj", inner, hidden),
            ("up_proj", inner, hidden),
            ("down_proj", hidden, inner),
        ):
            self.weight(name, b.linear(f"{self.prefix}mlp.{name}.weight", out_features, in_features, self.stored))

    def norm_weight(self, name: str, width: int) -> None:
        """Declare a zero-centred norm's scale: 1 + w, kept in float32."""
        self.weight(name, b.vector(f"{self.prefix}{name}.weight", width, FLOAT32, "one_plus"))

    def norm(self, x: Tensor, scale: Tensor) -> Tensor:
        """RMS norm in float32, one cast at the end."""
        return F.rms_norm(x.float(), (x.shape[-1],), scale, self.config.rms_norm_eps).to(self.dtype)

    def mlp(self, x: Tensor) -> Tensor:
        """Add the gated MLP to the residual stream."""
        h = self.norm(x, self.post_attention_layernorm)
        gate = h @ self.gate_proj
        return x + ((gate * gate.sigmoid() * (h @ self.up_proj)) @ self.down_proj).to(x.dtype)


class LinearLayer(DecoderLayer):
    """A Gated DeltaNet layer."""

    def __init__(self, upstream: Mapping[str, Tensor], layer: int, config: ModelConfig, recipe: Recipe) -> None:
        super().__init__(upstream, layer, config, recipe)
        text, mixer = config.text, self.prefix + "linear_attn."
        heads, hidden = text.linear_num_value_heads, text.hidden_size
        self.norm_weight("input_layernorm", hidden)
        self.weight("in_proj_qkv", b.linear(mixer + "in_proj_qkv.weight", text.conv_dim, hidden, self.stored))
        # z, -b and a in one product: one launch for three, and one cast to float32
        zba = (
            Part(mixer + "in_proj_z.weight"),
            Part(mixer + "in_proj_b.weight", scale=-1.0),
            Part(mixer + "in_proj_a.weight"),
        )
        self.weight("in_proj_zba", Binding(zba, self.stored, (hidden, text.value_dim + 2 * heads), transpose=True))
        kernel = (text.conv_dim, text.linear_conv_kernel_dim)
        # float32, and so is the convolution: its output is what queries, keys and values are made of
        self.weight("conv", Binding((Part(mixer + "conv1d.weight"),), FLOAT32, kernel))
        zeros = Part(fill=0.0, count=heads)
        self.weight("gate_bias", Binding((zeros, Part(mixer + "dt_bias")), FLOAT32, (2 * heads,)))
        # e^0 for beta, e^A_log for the decay, both negated: beta = e^-softplus(-b), decay = e^(-A softplus(a + dt))
        self.weight("gate_scale", Binding((zeros, Part(mixer + "A_log")), FLOAT32, (2 * heads,), "neg_exp"))
        self.weight("mixer_norm", b.vector(mixer + "norm.weight", text.linear_value_head_dim, FLOAT32))
        self.weight("out_proj", b.linear(mixer + "out_proj.weight", hidden, text.value_dim, self.stored))
        self.mlp_weights()
        self.sealed()

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        single_step: Tensor,
        token_mask: Tensor,
        chunk_index: Tensor,
        chunk_mask: Tensor,
        unpadded: Tensor,
        attention_bias: Tensor,
        kv_length: Tensor,
        conv_state: Tensor,
        recurrent_state: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Residual stream and two states in; residual stream and the same states out."""
        h = self.norm(x, self.input_layernorm)
        mixed, conv_state, recurrent_state = op.gated_delta_net(
            h @ self.in_proj_qkv,
            h @ self.in_proj_zba,
            conv_state,
            recurrent_state,
            single_step,
            token_mask,
            chunk_index,
            chunk_mask,
            self.conv,
            self.gate_bias,
            self.gate_scale,
            self.mixer_norm,
            self.config.linear_num_key_heads,
            self.config.linear_num_value_heads,
            self.config.rms_norm_eps,
        )
        x = x + (mixed @ self.out_proj).to(x.dtype)
        return self.mlp(x), conv_state, recurrent_state


class FullLayer(DecoderLayer):
    """A full-attention layer with output gate."""

    def __init__(self, upstream: Mapping[str, Tensor], layer: int, config: ModelConfig, recipe: Recipe) -> None:
        super().__init__(upstream, layer, config, recipe)
        text, mixer = config.text, self.prefix + "self_attn."
        heads, kv_heads, width = text.num_attention_heads, text.num_key_value_heads, text.head_dim
        hidden = text.hidden_size
        self.norm_weight("input_layernorm", hidden)
        # one product for all; upstream interleaves query and gate head by head, here each is contiguous
        self.widths = [(heads + kv_heads) * width, kv_heads * width, heads * width]
        parts = (
            Part(mixer + "q_proj.weight", group=(heads, 2, 0)),
            Part(mixer + "k_proj.weight"),
            Part(mixer + "v_proj.weight"),
            Part(mixer + "q_proj.weight", group=(heads, 2, 1)),
        )
        self.weight("in_proj", Binding(parts, self.stored, (hidden, sum(self.widths)), transpose=True))
        # queries and keys are normed and turned together; their scales differ, so they are applied as one table
        scales = (Part(mixer + "q_norm.weight"),) * heads + (Part(mixer + "k_norm.weight"),) * kv_heads
        self.weight("qk_norm", Binding(scales, FLOAT32, (heads + kv_heads, width), "one_plus"))
        self.constant("ones", np.ones(width, dtype=np.float32))
        self.weight("o_proj", b.linear(mixer + "o_proj.weight", hidden, heads * width, self.stored))
        self.mlp_weights()
        self.sealed()

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        single_step: Tensor,
        token_mask: Tensor,
        chunk_index: Tensor,
        chunk_mask: Tensor,
        unpadded: Tensor,
        attention_bias: Tensor,
        kv_length: Tensor,
        past_key: Tensor,
        past_value: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Residual stream and KV in; residual stream and grown KV out."""
        text = self.config
        heads, kv_heads, width = text.num_attention_heads, text.num_key_value_heads, text.head_dim
        h = self.norm(x, self.input_layernorm)
        qk, value, gate = (h @ self.in_proj).split(self.widths, dim=-1)
        qk = qk.float().unflatten(-1, (heads + kv_heads, width))
        qk = (F.rms_norm(qk, (width,), self.ones, text.rms_norm_eps) * self.qk_norm).flatten(2)
        # float32 through the rotation: one rounding instead of upstream's several
        qk = torch.onnx.ops.rotary_embedding(
            qk, cos, sin, num_heads=heads + kv_heads, rotary_embedding_dim=text.rotary_dim
        ).to(self.dtype)
        query, key = qk.split([heads * width, kv_heads * width], dim=-1)
        mixed, present_key, present_value = op.cached_attention(
            query, key, value, past_key, past_value, unpadded, attention_bias, kv_length, heads, kv_heads, self.static
        )
        x = x + ((mixed * gate.sigmoid()) @ self.o_proj).to(x.dtype)
        return self.mlp(x), present_key, present_value


class DecoderHead(Piece):
    """Final norm and vocabulary projection of the last position, or of all."""

    def __init__(self, upstream: Mapping[str, Tensor], config: ModelConfig, recipe: Recipe) -> None:
        """Args: upstream: `norm.weight` of the language model, and `lm_head.weight`."""
        head = upstream["lm_head.weight"]
        super().__init__({"norm.weight": upstream["norm.weight"]}, LANGUAGE_MODEL)
        self._upstream["lm_head.weight"] = head
        self._unread.add("lm_head.weight")
        hidden, vocabulary = config.text.hidden_size, config.text.vocab_size
        self.eps, self.last_only = config.text.rms_norm_eps, recipe.logits == "last"
        self.dtype = getattr(torch, recipe.tensor_dtype)
        self.weight("norm", b.vector(f"{LANGUAGE_MODEL}norm.weight", hidden, FLOAT32, "one_plus"))
        self.weight("lm_head", b.linear("lm_head.weight", vocabulary, hidden, recipe.tensor_dtype))
        self.sealed()

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] to logits [B, 1 or S, V]."""
        x = x[:, -1:] if self.last_only else x
        x = F.rms_norm(x.float(), (x.shape[-1],), self.norm, self.eps).to(self.dtype)
        logits = x @ self.lm_head
        return logits.float() if self.dtype == torch.bfloat16 else logits


class DecoderWrapper(nn.Module):
    """The whole decoder with the contract's flat inputs and outputs."""

    def __init__(self, prelude: DecoderPrelude, layers: list[DecoderLayer], head: DecoderHead) -> None:
        super().__init__()
        self.prelude, self.layers, self.head = prelude, nn.ModuleList(layers), head

    def forward(
        self, tokens: Tensor, attention_mask: Tensor, position_ids: Tensor, states: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """Logits, then the present states, two per layer, in contract order."""
        x, *shared = self.prelude(tokens, attention_mask, position_ids)
        present: list[Tensor] = []
        for layer, first, second in zip(self.layers, states[0::2], states[1::2], strict=True):
            x, *new = layer(x, *shared, first, second)
            present += new
        return self.head(x), *present


LAYER_PIECES: dict[str, type[DecoderLayer]] = {LINEAR_ATTENTION: LinearLayer, FULL_ATTENTION: FullLayer}
