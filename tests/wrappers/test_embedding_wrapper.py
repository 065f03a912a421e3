"""The embedding wrapper fills placeholders as Transformers does: exactly, in batch-global order."""

from __future__ import annotations

import pytest
import torch

from qwen_export.recipe import Recipe
from qwen_export.wrappers.embedding import EmbeddingWrapper

IMAGE, VIDEO = 460, 461


@pytest.fixture(scope="module")
def wrapper(tiny_graphs):
    assert (tiny_graphs.config.image_token_id, tiny_graphs.config.video_token_id) == (IMAGE, VIDEO)
    table = {"embed_tokens.weight": tiny_graphs.tensors["model.language_model.embed_tokens.weight"]}
    return EmbeddingWrapper(table, tiny_graphs.config, Recipe(dtype="fp32"))


def upstream(ids: torch.Tensor, features: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Transformers' way: one masked_scatter over both kinds in placeholder order."""
    mask = ((ids == IMAGE) | (ids == VIDEO)).unsqueeze(-1)
    return table[ids].masked_scatter(mask, features) if len(features) else table[ids]


@pytest.mark.parametrize(
    "rows",
    [
        [[1, 2, 3]],
        [[IMAGE]],
        [[1, IMAGE, IMAGE, 2, VIDEO]],
        [[VIDEO, 1, IMAGE, 2], [IMAGE, IMAGE, 3, VIDEO]],
        [[1, 2, 3, 4], [5, IMAGE, VIDEO, VIDEO]],
        [[IMAGE, IMAGE, IMAGE, IMAGE], [1, 2, 3, 4]],
    ],
)
def test_equals_transformers(rows, wrapper):
    torch.manual_seed(0)
    ids = torch.tensor(rows)
    features = torch.randn(int(((ids == IMAGE) | (ids == VIDEO)).sum()), wrapper.embed_tokens.shape[1])
    assert torch.equal(wrapper(ids, features), upstream(ids, features, wrapper.embed_tokens))


def test_without_features_a_placeholder_keeps_its_own_embedding(wrapper):
    ids = torch.tensor([[1, IMAGE, VIDEO], [IMAGE, 2, 3]])
    out = wrapper(ids, torch.zeros(0, wrapper.embed_tokens.shape[1]))
    assert torch.equal(out, wrapper.embed_tokens[ids])


def test_beyond_the_last_feature_a_placeholder_keeps_its_own_embedding(wrapper):
    ids = torch.tensor([[1, IMAGE, VIDEO], [IMAGE, 2, 3]])
    features = torch.randn(2, wrapper.embed_tokens.shape[1])
    out = wrapper(ids, features)
    assert torch.equal(out[0, 1:], features)
    assert torch.equal(out[1], wrapper.embed_tokens[ids[1]])


GRAPH_CASES = [
    ([[1, IMAGE, VIDEO], [IMAGE, 2, 3]], 3),
    ([[1, IMAGE], [2, 3]], 0),
    ([[5]], 0),
    ([[IMAGE, VIDEO]], 1),
]


@pytest.mark.parametrize(("rows", "count"), GRAPH_CASES)
def test_the_graph_does_the_same(rows, count, wrapper, tiny_graphs):
    session = tiny_graphs.session("embedding", Recipe(dtype="fp32"))
    ids, features = torch.tensor(rows), torch.randn(count, wrapper.embed_tokens.shape[1])
    out = session.run({"input_ids": ids.numpy(), "image_features": features.numpy()})["inputs_embeds"]
    assert torch.equal(torch.tensor(out), wrapper(ids, features))
