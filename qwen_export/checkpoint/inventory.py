"""Which tensors a checkpoint must hold, by component, under canonical keys.

Canonical keys are those of the official vision-language layout: `model.language_model.*`, `model.visual.*`,
`lm_head.weight`, and `mtp.*` for the multi-token-prediction layer that no graph uses.
Shapes are Hugging Face's own (Linear weights are [out, in]).
"""

from __future__ import annotations

from collections.abc import Iterable

from qwen_export.contract import COMPONENTS, DECODER, EMBEDDING, TEXT, VISION_ENCODER
from qwen_export.errors import InternalError
from qwen_export.model_config import FULL_ATTENTION, ModelConfig, TextConfig, VisionConfig

Shapes = dict[str, tuple[int, ...]]
"""Canonical key -> shape."""

LANGUAGE_PREFIX = "model.language_model."
VISUAL_PREFIX = "model.visual."
MTP_PREFIX = "mtp."
EMBED_KEY = LANGUAGE_PREFIX + "embed_tokens.weight"
HEAD_KEY = "lm_head.weight"


def components_of(config: ModelConfig) -> tuple[str, ...]:
    """Every component that a checkpoint with this config can give."""
    return COMPONENTS if config.vision is not None else (TEXT,)


def expected_tensors(config: ModelConfig, components: Iterable[str]) -> Shapes:
    """The tensors that the given components (`vision_encoder`, `embedding`, `decoder`, `text`) are made of.

    A tied head is listed as `lm_head.weight` all the same: a snapshot resolves it to the embedding.
    """
    out: Shapes = {}
    for component in components:
        if component == VISION_ENCODER:
            out |= _vision(_vision_config(config))
        elif component == EMBEDDING:
            out |= _embedding(config.text)
        elif component == DECODER:
            out |= _decoder(config.text)
        elif component == TEXT:
            out |= _embedding(config.text) | _decoder(config.text)
        else:
            raise InternalError(f"There is no component {component!r}.")
    return out


def mtp_tensors(config: ModelConfig, num_layers: int) -> Shapes:
    """The multi-token-prediction tensors of official checkpoints: fc, the two norms before it, layers, one norm."""
    text = config.text
    hidden = text.hidden_size
    out: Shapes = {
        "mtp.fc.weight": (hidden, 2 * hidden),
        "mtp.pre_fc_norm_embedding.weight": (hidden,),
        "mtp.pre_fc_norm_hidden.weight": (hidden,),
    }
    for index in range(num_layers):
        out |= _layer(text, f"mtp.layers.{index}.", FULL_ATTENTION)
    out["mtp.norm.weight"] = (hidden,)
    return out


def _vision_config(config: ModelConfig) -> VisionConfig:
    if config.vision is None:
        raise InternalError("A text-only model has no vision encoder.")
    return config.vision


def _embedding(text: TextConfig) -> Shapes:
    return {EMBED_KEY: (text.vocab_size, text.hidden_size)}


def _decoder(text: TextConfig) -> Shapes:
    out: Shapes = {}
    for index, kind in enumerate(text.layer_types):
        out |= _layer(text, f"{LANGUAGE_PREFIX}layers.{index}.", kind)
    out[LANGUAGE_PREFIX + "norm.weight"] = (text.hidden_size,)
    out[HEAD_KEY] = (text.vocab_size, text.hidden_size)
    return out


def _layer(text: TextConfig, prefix: str, kind: str) -> Shapes:
    hidden, wide = text.hidden_size, text.intermediate_size
    mixer = _full_attention(text) if kind == FULL_ATTENTION else _linear_attention(text)
    shapes: Shapes = {
        "input_layernorm.weight": (hidden,),
        **mixer,
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (wide, hidden),
        "mlp.up_proj.weight": (wide, hidden),
        "mlp.down_proj.weight": (hidden, wide),
    }
    return {prefix + name: shape for name, shape in shapes.items()}


def _full_attention(text: TextConfig) -> Shapes:
    hidden, head = text.hidden_size, text.head_dim
    queries, keys = text.num_attention_heads * head, text.num_key_value_heads * head
    return {
        "self_attn.q_proj.weight": (2 * queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
    }


def _linear_attention(text: TextConfig) -> Shapes:
    hidden, heads = text.hidden_size, text.linear_num_value_heads
    return {
        "linear_attn.in_proj_qkv.weight": (text.conv_dim, hidden),
        "linear_attn.in_proj_z.weight": (text.value_dim, hidden),
        "linear_attn.in_proj_b.weight": (heads, hidden),
        "linear_attn.in_proj_a.weight": (heads, hidden),
        "linear_attn.conv1d.weight": (text.conv_dim, 1, text.linear_conv_kernel_dim),
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.norm.weight": (text.linear_value_head_dim,),
        "linear_attn.out_proj.weight": (hidden, text.value_dim),
    }


def _vision(vision: VisionConfig) -> Shapes:
    hidden, wide = vision.hidden_size, vision.intermediate_size
    merged = hidden * vision.merge_unit
    patch = (vision.in_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size)
    shapes: Shapes = {
        "patch_embed.proj.weight": (hidden, *patch),
        "patch_embed.proj.bias": (hidden,),
        "pos_embed.weight": (vision.num_position_embeddings, hidden),
    }
    for index in range(vision.depth):
        block = f"blocks.{index}."
        for norm in ("norm1", "norm2"):
            shapes |= {f"{block}{norm}.weight": (hidden,), f"{block}{norm}.bias": (hidden,)}
        shapes |= _linear(block + "attn.qkv", 3 * hidden, hidden)
        shapes |= _linear(block + "attn.proj", hidden, hidden)
        shapes |= _linear(block + "mlp.linear_fc1", wide, hidden)
        shapes |= _linear(block + "mlp.linear_fc2", hidden, wide)
    shapes |= {"merger.norm.weight": (hidden,), "merger.norm.bias": (hidden,)}
    shapes |= _linear("merger.linear_fc1", merged, merged)
    shapes |= _linear("merger.linear_fc2", vision.out_hidden_size, merged)
    return {VISUAL_PREFIX + name: shape for name, shape in shapes.items()}


def _linear(name: str, out_features: int, in_features: int) -> Shapes:
    return {f"{name}.weight": (out_features, in_features), f"{name}.bias": (out_features,)}
