"""Refuse checkpoints whose weights are quantised already, naming the method."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from qwen_export.errors import CheckpointError

_CONFIG_KEYS = ("quantization_config", "compression_config")
_MODELOPT_FILE = "hf_quant_config.json"
_BY_SUFFIX = {
    ".weight_scale_inv": "block-wise FP8",
    ".weight_scale": "compressed-tensors or ModelOpt",
    ".weight_scale_2": "ModelOpt NVFP4",
    ".weight_packed": "compressed-tensors",
    ".input_scale": "static FP8",
    ".qweight": "GPTQ or AWQ",
    ".qzeros": "GPTQ or AWQ",
    ".g_idx": "GPTQ",
    ".weight.absmax": "bitsandbytes 4-bit",
    ".SCB": "bitsandbytes int8",
}
_QUANTISED_DTYPES = {
    "float8_e4m3fn": "FP8",
    "float8_e5m2": "FP8",
    "float8_e8m0fnu": "MXFP",
    "float4_e2m1fn": "FP4",
    "int8": "int8",
    "uint8": "packed 4- or 8-bit",
    "int32": "packed int4",
}
_ADVICE = "Export from the original bf16 checkpoint instead."


def refuse_quantised_config(folder: Path) -> None:
    """Look for a quantisation method in `config.json` (nested too) and in ModelOpt's own file."""
    raw = _object(folder / "config.json")
    parts = [part for part in (raw, raw.get("text_config"), raw.get("vision_config")) if isinstance(part, dict)]
    for settings in (part.get(key) for part in parts for key in _CONFIG_KEYS):
        if settings:
            method = settings.get("quant_method", "unknown") if isinstance(settings, dict) else settings
            raise CheckpointError(
                f"{folder / 'config.json'} declares pre-quantised weights (quant_method = {method!r}). {_ADVICE}"
            )
    settings = _object(folder / _MODELOPT_FILE).get("quantization")
    if settings:
        method = settings.get("quant_algo", "unknown") if isinstance(settings, dict) else settings
        raise CheckpointError(
            f"{folder / _MODELOPT_FILE} declares pre-quantised weights (ModelOpt, quant_algo = {method!r}). {_ADVICE}"
        )


def refuse_quantised_tensors(tensors: Iterable[tuple[str, str, Path]]) -> None:
    """Look for quantised values and their scales among (raw key, dtype, file)."""
    for key, dtype, file in tensors:
        for suffix, method in _BY_SUFFIX.items():
            if key.endswith(suffix):
                raise CheckpointError(f"{file} holds pre-quantised weights ({method}): tensor {key}. {_ADVICE}")
        if dtype in _QUANTISED_DTYPES:
            raise CheckpointError(
                f"{file} holds pre-quantised weights ({_QUANTISED_DTYPES[dtype]}): tensor {key} is {dtype}. {_ADVICE}"
            )


def _object(file: Path) -> dict[str, Any]:
    """A JSON object, or nothing: reading `config.json` properly is another module's job."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
