"""The model: config, starting weights, and a batched forward pass over Transformers' own modules."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional as F

HIDDEN, NUM_LAYERS = 192, 8


def make_config(vocab_size: int, ids: dict[str, int]):
    """4.0 million parameters, just under 8 MiB in bfloat16, with the official interval of full attention.

    Args:
        ids: token ids named `image`, `video`, `vision_start`, `vision_end`, `end`, `pad`.
    """
    from transformers import Qwen3_5Config

    text = {
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": 384,
        "num_hidden_layers": NUM_LAYERS,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * (NUM_LAYERS // 4),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        # With so few rotary frequencies a theta of 1e7 would hardly turn the height and width pairs.
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": False,
        "eos_token_id": ids["end"],
        "pad_token_id": ids["pad"],
        "bos_token_id": None,
        "dtype": "bfloat16",
    }
    vision = {
        "depth": 4,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_heads": 4,
        "num_position_embeddings": 144,
        "out_hidden_size": HIDDEN,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "in_channels": 3,
    }
    return Qwen3_5Config(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["image"],
        video_token_id=ids["video"],
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
        tie_word_embeddings=False,
        dtype="bfloat16",
    )


def make_model(config, seed: int) -> torch.nn.Module:
    """A fresh model in float32 whose states remember and whose attention starts by matching like with like."""
    from transformers import Qwen3_5ForConditionalGeneration

    torch.manual_seed(seed)
    model = Qwen3_5ForConditionalGeneration._from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    text = model.model.language_model
    with torch.no_grad():
        for layer in text.layers:
            if hasattr(layer, "linear_attn"):
                _remember(layer.linear_attn)
            else:
                _match_alike(layer.self_attn)
        text.embed_tokens.weight.normal_(0.0, 0.5)
        model.lm_head.weight.copy_(0.2 * text.embed_tokens.weight)
    return model


def _remember(block: torch.nn.Module) -> None:
    """Decay over tens of tokens. Transformers' own start (`dt_bias` 1) forgets within a token or two."""
    step = torch.exp(torch.empty_like(block.dt_bias).uniform_(math.log(0.001), math.log(0.1)))
    block.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))
    block.A_log.copy_(torch.empty_like(block.A_log).uniform_(1.0, 16.0).log())


def _match_alike(block: torch.nn.Module) -> None:
    """Queries start as the keys of their group, and the output as the transposed values."""
    size, groups = block.head_dim, block.num_key_value_groups
    heads = block.q_proj.weight.shape[0] // (2 * size)
    for head in range(heads):
        key = block.k_proj.weight[(head // groups) * size : (head // groups + 1) * size]
        value = block.v_proj.weight[(head // groups) * size : (head // groups + 1) * size]
        block.q_proj.weight[2 * head * size : (2 * head + 1) * size] = key
        block.o_proj.weight[:, head * size : (head + 1) * size] = value.T


@dataclass
class Plan:
    """What the vision tower needs to know about one grid, worked out once."""

    rope: torch.Tensor
    taps: torch.Tensor
    weights: torch.Tensor


class Vision:
    """Run the tower on pictures of one size as a batch; the sum is the same as Transformers', picture by picture."""

    def __init__(self, tower: torch.nn.Module) -> None:
        self.tower = tower
        self._plans: dict[tuple[int, int], Plan] = {}

    def __call__(self, pictures: torch.Tensor) -> torch.Tensor:
        """uint8 [n, height, width, 3] -> features [n, rows * columns, hidden]."""
        tower = self.tower
        patch, merge = tower.config.patch_size, tower.config.spatial_merge_size
        count, height, width, _ = pictures.shape
        pixels = pictures.float() / 127.5 - 1.0
        cell = patch * merge
        pixels = pixels.view(count, height // cell, merge, patch, width // cell, merge, patch, 3)
        pixels = pixels.permute(0, 1, 4, 2, 5, 7, 3, 6).reshape(count, -1, 3 * patch * patch)
        # A still picture fills both time slices of a patch, so their weights add up.
        kernel = tower.patch_embed.proj.weight.sum(2).flatten(1)
        x = F.linear(pixels, kernel, tower.patch_embed.proj.bias)
        plan = self._plan(height // patch, width // patch, pictures.device)
        x = x + (tower.pos_embed(plan.taps) * plan.weights[:, :, None]).sum(1)
        cos, sin = (part[None, None] for part in tower.rotary_pos_emb(x, plan.rope))
        for block in tower.blocks:
            x = x + _attend(block.attn, block.norm1(x), cos, sin)
            x = x + block.mlp(block.norm2(x))
        return tower.merger(x.flatten(0, 1)).view(count, -1, tower.config.out_hidden_size)

    def _plan(self, rows: int, columns: int, device: torch.device) -> Plan:
        if (rows, columns) not in self._plans:
            from transformers import vision_utils

            tower, grid = self.tower, torch.tensor([[1, rows, columns]])
            merge = tower.config.spatial_merge_size
            taps, weights = vision_utils.get_vision_interpolation_indices_and_weights(
                grid,
                num_grid_per_side=tower.num_grid_per_side,
                mode="bilinear",
                align_corners=True,
                spatial_merge_size=merge,
            )
            rope = vision_utils.get_vision_position_ids(grid, merge)
            self._plans[rows, columns] = Plan(rope.to(device), taps.to(device), weights.to(device))
        return self._plans[rows, columns]


def _attend(block: torch.nn.Module, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    count, length, hidden = x.shape
    qkv = block.qkv(x).view(count, length, 3, block.num_heads, block.head_dim).permute(2, 0, 3, 1, 4)
    query, key = (part * cos + _rotate_half(part) * sin for part in (qkv[0], qkv[1]))
    out = F.scaled_dot_product_attention(query, key, qkv[2])
    return block.proj(out.transpose(1, 2).reshape(count, length, hidden))


def _rotate_half(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def positions(start: int, rows: int, columns: int, length: int) -> torch.Tensor:
    """int64 [3, length]: text, then the picture's tokens from `start`, then text again."""
    out = torch.arange(length).repeat(3, 1)
    image = rows * columns
    index = torch.arange(image)
    out[:, start : start + image] = start + torch.stack([index * 0, index // columns, index % columns])
    out[:, start + image :] += max(rows, columns) - image
    return out
