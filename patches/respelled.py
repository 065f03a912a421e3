"""Upstream functions whose arithmetic the wrappers spell again, each with the fingerprints of the code we read.

A fingerprint is the hash of a function's source without comments, docstrings and layout. An unknown one stops the
export: the wrapper may no longer compute what Transformers computes. `run`, `bind` and the comparing half of
`verify` do not look.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from qwen_export.errors import UpstreamChanged

MODELING = "transformers.models.qwen3_5.modeling_qwen3_5"
VISION_UTILS = "transformers.vision_utils"
TESTED = "5.24.0"
"""The Transformers version whose sources were read."""


@dataclass(frozen=True)
class Respelled:
    """One upstream function and where its arithmetic lives here."""

    module: str
    function: str
    """Qualified name inside the module."""
    here: str
    """The wrapper or operator that spells it again."""
    accepted: tuple[str, ...]
    """Fingerprints of the versions that were read."""


RESPELLED: tuple[Respelled, ...] = (
    Respelled(MODELING, "Qwen3_5RMSNorm.forward", "wrappers/decoder.py", ("2dad5f5760750e09",)),
    Respelled(MODELING, "Qwen3_5RMSNorm._norm", "wrappers/decoder.py", ("6dc7d2ba16b4048a",)),
    Respelled(MODELING, "Qwen3_5RMSNormGated.forward", "wrappers/decoder_operators.py", ("dab341eff35e271c",)),
    Respelled(MODELING, "Qwen3_5MLP.forward", "wrappers/decoder.py", ("7d2027d4464e3e71",)),
    Respelled(MODELING, "Qwen3_5DecoderLayer.forward", "wrappers/decoder.py", ("27894a6221aa1572",)),
    Respelled(MODELING, "Qwen3_5TextModel.forward", "wrappers/decoder.py", ("398a3d45f64e82c3",)),
    Respelled(MODELING, "Qwen3_5TextRotaryEmbedding.forward", "wrappers/decoder.py", ("1c8644448c505862",)),
    Respelled(
        MODELING,
        "Qwen3_5TextRotaryEmbedding.compute_default_rope_parameters",
        "wrappers/decoder.py",
        ("d019f181b9a44089",),
    ),
    Respelled(
        MODELING, "Qwen3_5TextRotaryEmbedding.recomposition_frequencies", "wrappers/decoder.py", ("d2c72417efc8a2f5",)
    ),
    Respelled(MODELING, "Qwen3_5Attention.forward", "wrappers/decoder.py", ("eac61aa05d7fd89c",)),
    Respelled(MODELING, "apply_rotary_pos_emb", "wrappers/decoder.py", ("d979b6dc501d84b5",)),
    Respelled(MODELING, "rotate_half", "wrappers/decoder.py", ("7b6c9b425ca04287",)),
    Respelled(MODELING, "eager_attention_forward", "wrappers/decoder_operators.py", ("d425c745e98ff063",)),
    Respelled(MODELING, "apply_mask_to_padding_states", "wrappers/decoder_operators.py", ("49d9a701d26c40d3",)),
    Respelled(MODELING, "causal_conv1d_fn", "wrappers/decoder_operators.py", ("3748286789785b0c",)),
    Respelled(MODELING, "causal_conv1d_update", "wrappers/decoder_operators.py", ("1c7c86b803d95e61",)),
    Respelled(MODELING, "l2norm", "wrappers/decoder_operators.py", ("abd016531fb6c4e8",)),
    Respelled(MODELING, "torch_chunk_gated_delta_rule", "wrappers/decoder_operators.py", ("e26fe27b1abe5cf6",)),
    Respelled(MODELING, "torch_recurrent_gated_delta_rule", "wrappers/decoder_operators.py", ("6552b5ac310c8cb4",)),
    Respelled(MODELING, "Qwen3_5GatedDeltaNet.forward", "wrappers/decoder_operators.py", ("98575c175b933ac5",)),
    Respelled(MODELING, "Qwen3_5VisionPatchEmbed.forward", "wrappers/vision_encoder.py", ("7043a378c9fd5395",)),
    Respelled(MODELING, "Qwen3_5VisionPatchMerger.forward", "wrappers/vision_encoder.py", ("5c3547801840f914",)),
    Respelled(MODELING, "Qwen3_5VisionAttention.forward", "wrappers/vision_encoder.py", ("044bc72569fc3d46",)),
    Respelled(MODELING, "Qwen3_5VisionBlock.forward", "wrappers/vision_encoder.py", ("208b1e102eaed001",)),
    Respelled(MODELING, "Qwen3_5VisionMLP.forward", "wrappers/vision_encoder.py", ("2fe27664d995b009",)),
    Respelled(MODELING, "Qwen3_5VisionModel.forward", "wrappers/vision_encoder.py", ("5179a0297781fce7",)),
    Respelled(MODELING, "Qwen3_5VisionRotaryEmbedding.forward", "wrappers/vision_encoder.py", ("990f5b1d6222947f",)),
    Respelled(
        MODELING,
        "Qwen3_5VisionRotaryEmbedding.compute_axial_rope_parameters",
        "wrappers/vision_encoder.py",
        ("eac2b2b5c3f75524",),
    ),
    Respelled(
        MODELING,
        "Qwen3_5VisionRotaryEmbedding.recomposition_frequencies",
        "wrappers/vision_encoder.py",
        ("cb9aa630a0a33787",),
    ),
    Respelled(MODELING, "apply_rotary_pos_emb_vision", "wrappers/vision_encoder.py", ("97aa06734ed1816e",)),
    Respelled(MODELING, "Qwen3_5Model.get_placeholder_mask", "wrappers/embedding.py", ("c130096d5676ba58",)),
    Respelled(MODELING, "Qwen3_5Model.forward", "wrappers/embedding.py", ("f85545d9fc31e17c",)),
    Respelled(MODELING, "Qwen3_5Model.get_rope_index", "runtime/positions.py", ("8bc5a877d90b3fdb",)),
    Respelled(MODELING, "Qwen3_5Model.get_vision_position_ids", "runtime/positions.py", ("7d6b8c76c17aaecf",)),
    Respelled(
        VISION_UTILS,
        "get_vision_interpolation_indices_and_weights",
        "wrappers/vision_encoder.py",
        ("ea9292783e98577d",),
    ),
    Respelled(VISION_UTILS, "_interpolation_axis_taps_weights", "wrappers/vision_encoder.py", ("2506ec0ce2aa129f",)),
    Respelled(VISION_UTILS, "get_vision_position_ids", "wrappers/vision_encoder.py", ("ed9cea3ddc7e0645",)),
    Respelled(VISION_UTILS, "get_vision_cu_seqlens", "wrappers/vision_encoder.py", ("48f600133b808a24",)),
)


def check_upstream() -> None:
    """Compare every listed function with its accepted fingerprints.

    Raises:
        UpstreamChanged: names the first function that is not the code we read, its hash, and what to do.
    """
    for entry in RESPELLED:
        found = fingerprint(entry.module, entry.function)
        if found not in entry.accepted:
            raise UpstreamChanged(
                f"Transformers' {entry.function} ({entry.module}) is not the code that {entry.here} was written for: "
                f"fingerprint {found or 'missing'}, accepted {', '.join(entry.accepted)}. Install "
                f"transformers=={TESTED}, or compare the sources with `python scripts/show_patches.py`."
            )


def fingerprint(module: str, function: str) -> str | None:
    """Hash of a function's source; None when it is not there."""
    node = source_of(module, function)
    if node is None:
        return None
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(inner, clean=False) is not None:
            inner.body = inner.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(node).encode()).hexdigest()[:16]


@cache
def _source(module: str) -> str:
    """A module's source, without importing it."""
    package, _, name = module.rpartition(".")
    spec = importlib.util.find_spec(package.partition(".")[0])
    if spec is None or not spec.submodule_search_locations:
        raise UpstreamChanged(f"{package.partition('.')[0]} is not installed: pip install 'qwen-export[export]'.")
    path = Path(next(iter(spec.submodule_search_locations)), *package.split(".")[1:], f"{name}.py")
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def source_of(module: str, function: str) -> ast.AST | None:
    """The syntax tree of a function; None when it is not there."""
    found = _find(_tree(_source(module)), function.split("."))
    return copy.deepcopy(found)


@cache
def _tree(source: str) -> ast.Module:
    return ast.parse(source)


def _find(tree: ast.AST, names: list[str]) -> ast.AST | None:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == names[0]:
            return node if len(names) == 1 else _find(node, names[1:])
    return None
