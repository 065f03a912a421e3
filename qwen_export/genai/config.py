"""genai_config.json: what GenAI has to know about a package.

States need no entry of their own: GenAI derives `past_key_values.%d.conv_state` and its kin from the KV names. The
vision encoder and the embedding have no session options: they take over the decoder's, provider included, so that one
section decides where all three run, and `Config.clear_providers()` moves all three.
"""

from __future__ import annotations

import re
from typing import Any

from qwen_export.contract import DECODER, EMBEDDING, TEXT, VISION_ENCODER, GraphContract
from qwen_export.genai.processor import PROCESSOR_FILE
from qwen_export.genai.tokens import TokenFacts
from qwen_export.package import Package
from qwen_export.runtime.genai import cuda_options

VLM_TYPE, TEXT_TYPE = "qwen3_5", "qwen3_5_text"
TOKENIZER_FOLDER = "genai_tokenizer"
SAMPLING = {"do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.0}
"""Keys of generation_config.json that GenAI has too, and Transformers' defaults."""


def genai_config(package: Package, facts: TokenFacts, *, own_tokenizer: bool) -> dict[str, Any]:
    """The content of genai_config.json.

    Args:
        own_tokenizer: GenAI reads the tokenizer files of `TOKENIZER_FOLDER` in place of the package's.
    """
    text = package.config.text
    is_text = TEXT in package.components
    model: dict[str, Any] = {
        "type": TEXT_TYPE if is_text else VLM_TYPE,
        **facts.choose().to_config(),
        "vocab_size": text.vocab_size,
        "context_length": context_length(package),
        "decoder": decoder_section(package),
    }
    if own_tokenizer:
        model["tokenizer_dir"] = TOKENIZER_FOLDER
    if not is_text:
        model["embedding"] = {
            "filename": _file(package, EMBEDDING),
            "inputs": _named(package.contract(EMBEDDING), "inputs"),
            "outputs": _named(package.contract(EMBEDDING), "outputs"),
        }
        model["vision"] = vision_section(package)
    return {"model": model, "search": search_section(package, facts.generation)}


def decoder_section(package: Package) -> dict[str, Any]:
    """The decoder: file, sizes, names, and the session options of every component."""
    component = TEXT if TEXT in package.components else DECODER
    text, contract = package.config.text, package.contract(component)
    return {
        "filename": _file(package, component),
        "session_options": session_options(package),
        "head_size": text.head_dim,
        "hidden_size": text.hidden_size,
        "num_attention_heads": text.num_attention_heads,
        "num_hidden_layers": text.num_hidden_layers,
        "num_key_value_heads": text.num_key_value_heads,
        "inputs": {
            **_named(contract, "inputs"),
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            **_named(contract, "outputs"),
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }


def session_options(package: Package) -> dict[str, Any]:
    """Session options, with the CUDA provider where that is the package's target. All values are strings to GenAI."""
    providers = [{"cuda": cuda_options(package)}] if package.recipe.target == "cuda" else []
    return {"log_id": "onnxruntime-genai", **package.recipe.session.session, "provider_options": providers}


def vision_section(package: Package) -> dict[str, Any]:
    """The vision encoder and the processor file that feeds it."""
    vision = package.config.vision
    assert vision is not None
    return {
        "filename": _file(package, VISION_ENCODER),
        "config_filename": PROCESSOR_FILE,
        "spatial_merge_size": vision.spatial_merge_size,
        "patch_size": vision.patch_size,
        "inputs": _named(package.contract(VISION_ENCODER), "inputs"),
        "outputs": _named(package.contract(VISION_ENCODER), "outputs"),
    }


def search_section(package: Package, generation: dict[str, Any]) -> dict[str, Any]:
    """How tokens are chosen, and limits: those of generation_config.json."""
    chosen = {key: generation.get(key) for key in SAMPLING}
    limit = context_length(package)
    stated = generation.get("max_length")
    return {
        **{key: SAMPLING[key] if value is None else value for key, value in chosen.items()},
        "max_length": min(limit, stated) if isinstance(stated, int) and stated > 0 else limit,
        "num_beams": 1,
        "past_present_share_buffer": False,
        "chunk_size": package.recipe.prefill_slice,
    }


def context_length(package: Package) -> int:
    """Tokens of one request at most: what the model was made for, or what a static cache holds."""
    longest = package.config.text.max_position_embeddings
    return min(longest, package.recipe.static_length or longest)


def _named(contract: GraphContract, side: str) -> dict[str, str]:
    """Names of inputs or outputs that are not states; in every graph the key GenAI knows is the name itself."""
    names = [spec.name for spec in getattr(contract, side)]
    return {name: name for name in names if not re.match(r"(past_key_values|present)\.", name)}


def _file(package: Package, component: str) -> str:
    return package.graph_path(component).relative_to(package.folder).as_posix()
