"""Upstream's vision modules and their parameters, without weight data or from a loaded model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from qwen_export.model_config import ModelConfig
from qwen_export.recipe import Recipe
from qwen_export.wrappers.upstream import below, vision_config
from qwen_export.wrappers.vision_encoder import (
    VISUAL,
    VisionBlock,
    VisionEncoderWrapper,
    VisionMerger,
    VisionPrelude,
    block_prefix,
)

ENDS = ("blocks.", "merger.")
"""Parameters of the visual model under these names do not belong to the prelude."""


def meta_vision_prelude(config: ModelConfig) -> dict[str, Tensor]:
    """Parameters of upstream's patch embedding and position table on the meta device, by their names in the model."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionPatchEmbed

    upstream = vision_config(config)
    with torch.device("meta"):
        patches = Qwen3_5VisionPatchEmbed(upstream)
        table = torch.nn.Embedding(upstream.num_position_embeddings, upstream.hidden_size)
        parameters = {f"patch_embed.{name}": value for name, value in patches.named_parameters()}
        return parameters | {"pos_embed.weight": table.weight}


def meta_vision_block(config: ModelConfig) -> dict[str, Tensor]:
    """Parameters of upstream's transformer block on the meta device."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionBlock

    with torch.device("meta"):
        return dict(Qwen3_5VisionBlock(vision_config(config)).named_parameters())


def meta_vision_merger(config: ModelConfig) -> dict[str, Tensor]:
    """Parameters of upstream's patch merger on the meta device."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionPatchMerger

    with torch.device("meta"):
        return dict(Qwen3_5VisionPatchMerger(vision_config(config)).named_parameters())


def whole_vision_encoder(config: ModelConfig, recipe: Recipe, tensors: Mapping[str, Tensor]) -> VisionEncoderWrapper:
    """The wrapper of the whole vision encoder around a loaded model's tensors (canonical keys, as its `state_dict`)."""
    assert config.vision is not None
    visual = below(tensors, VISUAL)
    ends = {name: value for name, value in visual.items() if not name.startswith(ENDS)}
    blocks = [VisionBlock(below(tensors, block_prefix(i)), i, config, recipe) for i in range(config.vision.depth)]
    return VisionEncoderWrapper(
        VisionPrelude(ends, config, recipe), blocks, VisionMerger(below(visual, "merger."), config, recipe)
    )
