"""Pieces declare every weight; what upstream has and we do not know, or the reverse, is an error that names it."""

from __future__ import annotations

import pytest
import torch

from qwen_export.bindings import Binding, Part, linear, vector
from qwen_export.errors import InternalError, UpstreamChanged
from qwen_export.recipe import Recipe
from qwen_export.wrappers.piece import Piece, evaluate
from qwen_export.wrappers.upstream import decoder_layer, meta_layer


@pytest.mark.parametrize("layer", [0, 3], ids=["linear", "full"])
def test_an_unknown_upstream_parameter_is_refused_by_name(layer, tiny_config):
    upstream = {**meta_layer(tiny_config, layer), "mlp.extra_gate.weight": torch.empty(1, device="meta")}
    with pytest.raises(UpstreamChanged, match=rf"layers\.{layer}\.mlp\.extra_gate\.weight"):
        decoder_layer(tiny_config, Recipe(), layer, upstream)


@pytest.mark.parametrize("layer", [0, 3], ids=["linear", "full"])
def test_a_missing_upstream_parameter_is_refused_by_name(layer, tiny_config):
    for gone in meta_layer(tiny_config, layer):
        upstream = {name: value for name, value in meta_layer(tiny_config, layer).items() if name != gone}
        with pytest.raises(UpstreamChanged, match=gone.replace(".", r"\.")):
            decoder_layer(tiny_config, Recipe(), layer, upstream)


def test_a_declared_shape_must_fit():
    piece = Piece({"a": torch.zeros(2, 3)}, "model.")
    with pytest.raises((InternalError, RuntimeError)):
        piece.weight("a", Binding((Part("model.a"),), "float32", (2, 4)))


A, B = torch.arange(6.0).reshape(2, 3), torch.arange(6.0, 12.0).reshape(2, 3)
TENSORS = {"a": A, "b": B, "v": torch.tensor([1.0, 2.0]), "k": torch.arange(8.0).reshape(2, 1, 4)}


@pytest.mark.parametrize(
    ("binding", "wanted"),
    [
        (linear("a", 2, 3, "float32"), A.T),
        (vector("v", 2, "float32"), TENSORS["v"]),
        (vector("v", 2, "float32", "one_plus"), torch.tensor([2.0, 3.0])),
        (vector("v", 2, "float32", "exp"), torch.tensor([1.0, 2.0]).exp()),
        (vector("v", 2, "float32", "neg_exp"), -torch.tensor([1.0, 2.0]).exp()),
        (Binding((Part("a"), Part("b", scale=-1.0)), "float32", (3, 4), transpose=True), torch.cat([A, -B]).T),
        (Binding((Part(fill=0.5, count=2), Part("v")), "float32", (4,)), torch.tensor([0.5, 0.5, 1, 2])),
        (Binding((Part("v"), Part("v")), "float32", (2, 2)), torch.tensor([[1.0, 2], [1, 2]])),
        (Binding((Part("k"),), "float32", (2, 4)), TENSORS["k"].reshape(2, 4)),
        (Binding((Part("c", group=(2, 2, 1)),), "float32", (4, 1)), torch.tensor([[2.0], [3], [6], [7]])),
        (Binding((Part("c", group=(2, 2, 0)),), "float32", (1, 4), transpose=True), torch.tensor([[0.0, 1, 4, 5]])),
    ],
)
def test_the_arithmetic_of_a_binding(binding, wanted):
    tensors = {**TENSORS, "c": torch.arange(8.0).reshape(8, 1)}
    assert torch.equal(evaluate(binding, tensors), wanted)


def test_values_are_cast_once_from_the_checkpoints_own():
    value = torch.tensor([0.1], dtype=torch.bfloat16)
    out = evaluate(vector("v", 1, "float16", "one_plus"), {"v": value})
    assert out.dtype == torch.float16
    assert out.item() == torch.tensor(1 + value.float().item()).half().item()
    # A_log in bf16 stays what it is: float32 all the way, never through half
    rate = evaluate(vector("v", 1, "float32", "neg_exp"), {"v": value})
    assert rate.item() == -value.float().exp().item()
