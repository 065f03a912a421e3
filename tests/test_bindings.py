"""Bindings are plain data: they survive the manifest, and move from layer to layer."""

from __future__ import annotations

import json

import pytest

from qwen_export.bindings import Binding, Part, linear, vector

ALL = [
    linear("lm_head.weight", 512, 96, "float16"),
    vector("model.norm.weight", 96, "float32", "one_plus"),
    Binding((Part("a", scale=-1.0), Part("b", group=(6, 2, 1)), Part(fill=0.5, count=3)), "bfloat16", (7, 3)),
    Binding((Part(fill=0.0, count=6), Part("x")), "float32", (12,), "neg_exp"),
    Binding((Part("t"),), "float16", (4, 2), transpose=True),
]


@pytest.mark.parametrize("binding", ALL)
def test_through_json_and_back(binding):
    assert Binding.from_dict(json.loads(json.dumps(binding.to_dict()))) == binding


def test_only_what_differs_from_the_default_is_stored():
    assert vector("v", 4, "float32").to_dict() == {"parts": [{"tensor": "v"}], "dtype": "float32", "shape": (4,)}
    assert linear("w", 2, 3, "float16").to_dict() == {
        "parts": [{"tensor": "w"}], "dtype": "float16", "shape": (3, 2), "transpose": True,
    }  # fmt: skip


def test_tensors_lists_what_is_read_in_order():
    assert ALL[2].tensors == ("a", "b")
    assert ALL[3].tensors == ("x",)


def test_renamed_moves_to_another_layer_and_nowhere_else():
    binding = Binding((Part("layers.1.w"), Part("layers.11.w"), Part(count=2)), "float32", (4,))
    moved = binding.renamed("layers.1.", "layers.7.")
    assert moved.tensors == ("layers.7.w", "layers.11.w")
    assert moved.parts[2] == Part(count=2)
    assert binding.tensors == ("layers.1.w", "layers.11.w")
