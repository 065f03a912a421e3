"""The embedding component: token embeddings with image features in the places of their placeholders."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_export.bindings import Binding, Part
from qwen_export.model_config import ModelConfig
from qwen_export.recipe import Recipe
from qwen_export.wrappers.decoder import LANGUAGE_MODEL
from qwen_export.wrappers.piece import Piece


class EmbeddingWrapper(Piece):
    """Fuse token embeddings and image features, in flattened (batch, token) placeholder order."""

    def __init__(self, upstream: Mapping[str, Tensor], config: ModelConfig, recipe: Recipe) -> None:
        """Args: upstream: `embed_tokens.weight` of the language model."""
        super().__init__(upstream, LANGUAGE_MODEL)
        self.image, self.video = config.image_token_id, config.video_token_id
        shape = (config.text.vocab_size, config.text.hidden_size)
        part = Part(f"{LANGUAGE_MODEL}embed_tokens.weight")
        self.weight("embed_tokens", Binding((part,), recipe.tensor_dtype, shape))
        self.sealed()

    def forward(self, input_ids: Tensor, image_features: Tensor) -> Tensor:
        """ids [B, S] and features [F, D], F = 0 allowed, to [B, S, D].

        Placeholder number n takes feature row n; one beyond the last row keeps its own token embedding.
        """
        is_media = (input_ids == self.image) | (input_ids == self.video)
        number = is_media.reshape(-1).long().cumsum(0).reshape(input_ids.shape)
        has_row = is_media & (number <= image_features.shape[0])
        # row 0 is padding: with F = 0 the look-up below still has a row to read
        rows = torch.cat([image_features.new_zeros(1, image_features.shape[1]), image_features])
        features = F.embedding(torch.where(has_row, number, 0), rows)
        return torch.where(has_row.unsqueeze(-1), features, F.embedding(input_ids, self.embed_tokens))
