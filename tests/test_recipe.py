"""The recipe: defaults, files, overrides, and refusals that name the key."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from qwen_export.errors import UsageError
from qwen_export.recipe import Recipe, Tolerances, read_recipe, recipe_from_dict


def test_defaults():
    recipe = read_recipe(None)
    assert recipe == Recipe()
    assert (recipe.dtype, recipe.logits, recipe.target, recipe.kv_cache) == ("fp16", "last", "cuda", "dynamic")
    assert recipe.tensor_dtype == "float16" and recipe.static_length is None
    limits = recipe.tolerances
    assert (limits.fp32_max_abs, limits.fp32_relative_rms, limits.half_error_ratio) == (5e-5, 1e-5, 1.05)
    assert (limits.rtol, limits.atol) == (1e-2, 1e-2)


@pytest.mark.parametrize(
    ("changes", "chunk", "block"),
    [
        ({}, 64, 0),
        ({"target": "cpu"}, 32, 1024),
        ({"chunk_size": 16}, 16, 0),
        ({"target": "cpu", "chunk_size": 128, "attention_block": 64}, 128, 64),
    ],
)
def test_the_targets_own_sizes(changes, chunk, block):
    recipe = Recipe(**changes)
    assert (recipe.effective_chunk_size, recipe.effective_attention_block) == (chunk, block)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dtype": "int4"}, "dtype must be one of fp32, fp16, bf16"),
        ({"logits": "first"}, "logits"),
        ({"target": "npu"}, "target"),
        ({"residual": "half"}, "residual"),
        ({"kv_cache": "paged"}, "kv_cache"),
        ({"chunk_size": 48}, "power of two"),
        ({"chunk_size": 1}, "power of two"),
        ({"chunk_size": 512}, "power of two"),
        ({"kv_cache": "static"}, "--max-length"),
        ({"max_length": 100}, "--kv-cache static"),
        ({"decode_graph": True}, "--kv-cache static"),
        ({"prefill_slice": 0}, "prefill_slice"),
    ],
)
def test_impossible_values_are_refused(changes, says):
    with pytest.raises(UsageError, match=says):
        Recipe(**changes)


def test_a_file_sets_what_it_names_and_nothing_else(tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_text(
        'dtype = "bf16"\nkv_cache = "static"\nmax_length = 4096\n[tolerances]\nhalf_error_ratio = 1.2\nrtol = 1\n',
        encoding="utf-8",
    )
    recipe = read_recipe(file)
    assert recipe == Recipe(
        dtype="bf16", kv_cache="static", max_length=4096, tolerances=Tolerances(half_error_ratio=1.2, rtol=1)
    )
    assert recipe.static_length == 4096


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('dtpye = "fp16"', "unknown key 'dtpye'"),
        ("[tolerances]\nmax = 1", r"\[tolerances\]: unknown key 'max'"),
        ("tolerances = 3", "expected a table"),
        ("dtype = 16", "dtype must be a str"),
        ("max_length = true", "max_length must be a int"),
        ('decode_graph = "yes"', "decode_graph must be a bool"),
        ("dtype =", "TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_name_of_the_key(text, says, tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=says):
        read_recipe(file)


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(UsageError, match="No recipe file"):
        read_recipe(tmp_path / "none.toml")


def test_through_the_manifest_and_back():
    recipe = Recipe(dtype="fp32", logits="all", chunk_size=32, tolerances=Tolerances(rtol=0.5))
    stored = json.loads(json.dumps(recipe.to_dict()))
    assert recipe_from_dict(stored, "manifest.json") == recipe


def test_flags_override_single_fields():
    recipe = Recipe(dtype="fp32", target="cpu")
    assert recipe.with_overrides({"dtype": "bf16", "logits": None}) == replace(recipe, dtype="bf16")
    with pytest.raises(UsageError):
        recipe.with_overrides({"dtype": "fp8"})


def test_a_recipe_cannot_be_changed():
    with pytest.raises(AttributeError):
        Recipe().dtype = "fp32"  # type: ignore[misc]
