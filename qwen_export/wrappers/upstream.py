"""Upstream's modules and their parameters, without weight data or from a loaded model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from qwen_export.model_config import ModelConfig
from qwen_export.recipe import Recipe
from qwen_export.wrappers.decoder import (
    LANGUAGE_MODEL,
    LAYER_PIECES,
    DecoderHead,
    DecoderLayer,
    DecoderPrelude,
    DecoderWrapper,
    layer_prefix,
)


def text_config(config: ModelConfig):
    """Transformers' own text config object."""
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

    raw = config.raw.get("text_config", config.raw)
    return Qwen3_5TextConfig(**{key: value for key, value in raw.items() if key != "model_type"})


def vision_config(config: ModelConfig):
    """Transformers' own vision config object."""
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5VisionConfig

    raw = config.raw["vision_config"]
    return Qwen3_5VisionConfig(**{key: value for key, value in raw.items() if key != "model_type"})


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under a prefix, with it removed."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def meta_layer(config: ModelConfig, layer: int) -> dict[str, Tensor]:
    """Parameters of upstream's decoder layer on the meta device."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer

    with torch.device("meta"):
        return dict(Qwen3_5DecoderLayer(text_config(config), layer).named_parameters())


def meta_ends(config: ModelConfig) -> dict[str, Tensor]:
    """Embedding, final norm and head on the meta device, by canonical key."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNorm

    text = config.text
    with torch.device("meta"):
        norm = Qwen3_5RMSNorm(text.hidden_size, eps=text.rms_norm_eps)
        table = torch.empty(text.vocab_size, text.hidden_size)
        return {
            f"{LANGUAGE_MODEL}norm.weight": norm.weight,
            f"{LANGUAGE_MODEL}embed_tokens.weight": table,
            "lm_head.weight": torch.empty_like(table),
        }


def decoder_pieces(
    config: ModelConfig, recipe: Recipe, tensors: Mapping[str, Tensor], *, text: bool
) -> tuple[DecoderPrelude, DecoderHead]:
    """Prelude and head around the given tensors (canonical keys)."""
    prelude = DecoderPrelude(
        {"embed_tokens.weight": tensors[f"{LANGUAGE_MODEL}embed_tokens.weight"]}, config, recipe, text
    )
    head = {"norm.weight": tensors[f"{LANGUAGE_MODEL}norm.weight"], "lm_head.weight": tensors["lm_head.weight"]}
    return prelude, DecoderHead(head, config, recipe)


def decoder_layer(config: ModelConfig, recipe: Recipe, layer: int, upstream: Mapping[str, Tensor]) -> DecoderLayer:
    """One layer piece of the kind the config says."""
    return LAYER_PIECES[config.text.layer_types[layer]](upstream, layer, config, recipe)  # type: ignore[call-arg]


def whole_decoder(
    config: ModelConfig, recipe: Recipe, tensors: Mapping[str, Tensor], *, text: bool = False
) -> DecoderWrapper:
    """The wrapper of the whole decoder around a loaded model's tensors (canonical keys, as its `state_dict`)."""
    prelude, head = decoder_pieces(config, recipe, tensors, text=text)
    layers = [
        decoder_layer(config, recipe, i, below(tensors, layer_prefix(i))) for i in range(config.text.num_hidden_layers)
    ]
    return DecoderWrapper(prelude, layers, head)
