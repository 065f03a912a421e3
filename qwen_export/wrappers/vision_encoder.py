"""The vision encoder, cut into pieces that are traced alone: prelude, one transformer block, merger.

`VisionEncoderWrapper` puts the pieces together again: that is the module the contract describes, it runs eagerly, and
its whole trace is what the stamped graph is compared with. Shape letters: `qwen_export.model_config`; C is the vision
width, Q and W are the query blocks and their slots (`qwen_export.wrappers.vision_operators`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qwen_export import bindings as b
from qwen_export.bindings import Binding, Part
from qwen_export.contract import FLOAT32, INT64, PATCHES, TensorSpec
from qwen_export.model_config import ModelConfig, VisionConfig
from qwen_export.recipe import Recipe
from qwen_export.wrappers import vision_operators as op
from qwen_export.wrappers.piece import Piece

VISUAL = "model.visual."
LAYER_NORM_EPS = 1e-6
"""Fixed in upstream's modules, not a config value."""
QUERY_BLOCKS, BLOCK_SLOTS = "query_blocks", "block_slots"
"""Axis names between the pieces."""


def block_prefix(block: int) -> str:
    """Canonical checkpoint prefix of one transformer block."""
    return f"{VISUAL}blocks.{block}."


def vision_config(config: ModelConfig) -> VisionConfig:
    """The vision facts of a model that has some."""
    assert config.vision is not None
    return config.vision


def hidden_spec(config: ModelConfig, recipe: Recipe) -> TensorSpec:
    """The residual stream between the pieces: float32 in every recipe.

    Each block adds twice to it. In half precision each addition rounds what all earlier blocks have gathered: at 27
    blocks the features' error against float32 was twice as large, and outliers of a stream trained in bfloat16 can
    leave float16's range.
    """
    return TensorSpec("hidden", FLOAT32, (PATCHES, vision_config(config).hidden_size))


def vision_shared_specs(config: ModelConfig, recipe: Recipe) -> list[TensorSpec]:
    """The prelude's outputs after the hidden state: what every block is given."""
    half = vision_config(config).head_dim // 2
    angles = (1, PATCHES, half) if recipe.effective_attention_block else (QUERY_BLOCKS, BLOCK_SLOTS, half)
    return [
        TensorSpec("cos", FLOAT32, angles),
        TensorSpec("sin", FLOAT32, angles),
        TensorSpec("query_rows", INT64, (QUERY_BLOCKS, BLOCK_SLOTS)),
        TensorSpec("key_start", INT64, (QUERY_BLOCKS, 1)),
        TensorSpec("key_end", INT64, (QUERY_BLOCKS, 1)),
        TensorSpec("key_count", INT64, (QUERY_BLOCKS,)),
        TensorSpec("slot", INT64, (PATCHES,)),
    ]


class VisionPiece(Piece):
    """What all three pieces have: biased Linears and layer norms."""

    def __init__(self, upstream: Mapping[str, Tensor], prefix: str, config: ModelConfig, recipe: Recipe) -> None:
        super().__init__(upstream, prefix)
        self.prefix, self.recipe = prefix, recipe
        self.config = vision_config(config)
        self.dtype = getattr(torch, recipe.tensor_dtype)

    def linear(self, name: str, out_features: int, in_features: int) -> None:
        """Declare `NAME.weight`, stored [out, in] as in the checkpoint (Gemm transposes it in place), and its bias."""
        short, stored = name.replace(".", "_"), self.recipe.tensor_dtype
        weight = Part(f"{self.prefix}{name}.weight")
        self.weight(f"{short}_weight", Binding((weight,), stored, (out_features, in_features)))
        self.weight(f"{short}_bias", b.vector(f"{self.prefix}{name}.bias", out_features, stored))

    def layer_norm(self, name: str) -> None:
        """Declare a layer norm's scale and shift, in float32 like the stream they read."""
        for part in ("weight", "bias"):
            width = self.config.hidden_size
            self.weight(f"{name}_{part}", b.vector(f"{self.prefix}{name}.{part}", width, FLOAT32))

    def project(self, name: str, x: Tensor) -> Tensor:
        """Apply a declared Linear to [rows, in]: one Gemm, so the bias joins before the only rounding."""
        return F.linear(x, getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias"))

    def normalise(self, name: str, x: Tensor) -> Tensor:
        """Apply a declared layer norm in float32, one cast at the end."""
        weight, bias = getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias")
        return F.layer_norm(x, (x.shape[-1],), weight, bias, LAYER_NORM_EPS).to(self.dtype)

    def activate(self, x: Tensor, approximate: str) -> Tensor:
        """GELU in float32, one cast at the end: ONNX Runtime's half-precision kernel rounds after every operation,
        and 1 + tanh cancels where most values are."""
        return F.gelu(x.float(), approximate=approximate).to(self.dtype)


class VisionPrelude(VisionPiece):
    """Patch embedding, learned positions, rotary angles, and the plan of the call."""

    positions: Tensor
    inv_freq: Tensor
    corners: Tensor
    strides: Tensor

    def __init__(self, upstream: Mapping[str, Tensor], config: ModelConfig, recipe: Recipe) -> None:
        """Args: upstream: `patch_embed.proj.weight`, `patch_embed.proj.bias` and `pos_embed.weight`."""
        super().__init__(upstream, VISUAL, config, recipe)
        vision = self.config
        # a Conv3d whose stride is its kernel is a Linear on the flat row
        self.linear("patch_embed.proj", vision.hidden_size, vision.patch_width)
        table = (vision.num_position_embeddings, vision.hidden_size)
        self.weight("positions", Binding((Part(f"{VISUAL}pos_embed.weight"),), FLOAT32, table))
        self.constant("inv_freq", rotary_frequencies(vision))
        self.constant("corners", np.array([[0, 0, 1, 1], [0, 1, 0, 1]]))
        self.constant("strides", np.array([[vision.grid_side], [1]]))
        self.sealed()

    def forward(self, pixel_values: Tensor, image_grid_thw: Tensor) -> tuple[Tensor, ...]:
        """Args: pixel_values: [R, patch width] float32; image_grid_thw: [M, 3].

        Returns: residual stream [R, C] float32, then the values of `vision_shared_specs`.
        """
        block = self.recipe.effective_attention_block
        place, extent, *shared = op.vision_plan(pixel_values, image_grid_thw, self.config.spatial_merge_size, block)
        patches = self.project("patch_embed_proj", pixel_values.to(self.dtype))
        place = place.float()
        # positions in float32 from the table's own values, and never rounded
        hidden = patches.float() + self.learned_positions(place, extent)
        # angles in float32: half precision loses whole radians at far columns
        angles = (place.unsqueeze(-1) * self.inv_freq).flatten(1)
        angles = angles.unsqueeze(0) if block else F.embedding(shared[0], angles)
        return hidden, angles.cos(), angles.sin(), *shared

    def learned_positions(self, place: Tensor, extent: Tensor) -> Tensor:
        """The learned table resampled to each image's grid: bilinear, corners aligned, float32. [R, C]."""
        side = self.config.grid_side
        # upstream's order of operations, so that the weights are equal to the last bit
        source = place * (side - 1) / (extent - 1).clamp(min=1)
        floor = source.floor()
        # per axis and corner of the cell around the patch
        share = 1 - ((source - floor).unsqueeze(-1) - self.corners).abs()
        tap = (floor.long().unsqueeze(-1) + self.corners).clamp(max=side - 1)
        taps = (tap * self.strides).sum(1)
        return (F.embedding(taps, self.positions) * share.prod(1).unsqueeze(-1)).sum(1)


def rotary_frequencies(config: VisionConfig) -> np.ndarray:
    """Inverse frequencies [head dim / 4], float32, in upstream's own order of operations; the same for both axes."""
    half = config.head_dim // 2
    exponent = torch.arange(0, half, 2, dtype=torch.float) / half
    return (1.0 / (config.rope_theta**exponent)).numpy()


class VisionBlock(VisionPiece):
    """One transformer block: attention within segments, and the MLP."""

    def __init__(self, upstream: Mapping[str, Tensor], block: int, config: ModelConfig, recipe: Recipe) -> None:
        super().__init__(upstream, block_prefix(block), config, recipe)
        width, inner = self.config.hidden_size, self.config.intermediate_size
        self.layer_norm("norm1")
        self.linear("attn.qkv", 3 * width, width)
        self.linear("attn.proj", width, width)
        self.layer_norm("norm2")
        self.linear("mlp.linear_fc1", inner, width)
        self.linear("mlp.linear_fc2", width, inner)
        self.sealed()

    def forward(
        self,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        query_rows: Tensor,
        key_start: Tensor,
        key_end: Tensor,
        key_count: Tensor,
        slot: Tensor,
    ) -> Tensor:
        """Residual stream [R, C] float32 in and out."""
        mixed = op.packed_attention(
            self.project("attn_qkv", self.normalise("norm1", hidden)),
            cos,
            sin,
            query_rows,
            key_start,
            key_end,
            key_count,
            slot,
            self.config.num_heads,
            self.recipe.effective_attention_block,
        )
        hidden = hidden + self.project("attn_proj", mixed).float()
        inner = self.activate(self.project("mlp_linear_fc1", self.normalise("norm2", hidden)), "tanh")
        return hidden + self.project("mlp_linear_fc2", inner).float()


class VisionMerger(VisionPiece):
    """Squares of patches become feature rows of the decoder's width."""

    def __init__(self, upstream: Mapping[str, Tensor], config: ModelConfig, recipe: Recipe) -> None:
        super().__init__(upstream, f"{VISUAL}merger.", config, recipe)
        self.width = self.config.hidden_size * self.config.merge_unit
        self.layer_norm("norm")
        self.linear("linear_fc1", self.width, self.width)
        self.linear("linear_fc2", self.config.out_hidden_size, self.width)
        self.sealed()

    def forward(self, hidden: Tensor) -> Tensor:
        """[R, C] to [F, D]."""
        merged = self.normalise("norm", hidden).reshape(-1, self.width)
        return self.project("linear_fc2", self.activate(self.project("linear_fc1", merged), "none"))


class VisionEncoderWrapper(nn.Module):
    """The whole vision encoder with the contract's inputs and output."""

    def __init__(self, prelude: VisionPrelude, blocks: list[VisionBlock], merger: VisionMerger) -> None:
        super().__init__()
        self.prelude, self.blocks, self.merger = prelude, nn.ModuleList(blocks), merger

    def forward(self, pixel_values: Tensor, image_grid_thw: Tensor) -> Tensor:
        """Image features [F, D]."""
        hidden, *shared = self.prelude(pixel_values, image_grid_thw)
        for block in self.blocks:
            hidden = block(hidden, *shared)
        return self.merger(hidden)
