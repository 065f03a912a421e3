"""The facts of a dense qwen3_5 model, read from `config.json` without Transformers.

`bind`, `audit`, `run` and the comparing half of `verify` must work where Transformers is another version than the one
that traced the graphs, so the few numbers they need are read here. A test holds every default equal to Transformers'.

Shape letters used across the project: B batch, S new tokens, P past tokens, T = P + S, D hidden, V vocabulary,
N query heads, G KV heads, H head dim, C conv channels, K conv kernel, R patch rows, F feature rows, M media.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from qwen_export.errors import CheckpointError

VLM_MODEL_TYPES = ("qwen3_5",)
TEXT_MODEL_TYPES = ("qwen3_5_text", "qwen3_5_vl_text")
LINEAR_ATTENTION = "linear_attention"
FULL_ATTENTION = "full_attention"


@dataclass(frozen=True)
class TextConfig:
    """The decoder's facts; names are those of `text_config` in the checkpoint."""

    vocab_size: int = 248320
    hidden_size: int = 4096
    intermediate_size: int = 12288
    num_hidden_layers: int = 32
    num_attention_heads: int = 16
    num_key_value_heads: int = 4
    head_dim: int = 256
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    max_position_embeddings: int = 32768
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    layer_types: tuple[str, ...] = ()
    rope_theta: float = 10000.0
    partial_rotary_factor: float = 0.25
    mrope_section: tuple[int, ...] = (11, 11, 10)

    @property
    def key_dim(self) -> int:
        """Width of all linear-attention keys (= queries) together."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self) -> int:
        """Width of all linear-attention values together."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_dim(self) -> int:
        """C, the channels of the causal convolution: queries, keys and values."""
        return 2 * self.key_dim + self.value_dim

    @property
    def rotary_dim(self) -> int:
        """Leading components of each head that the rotary embedding turns."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def linear_layers(self) -> tuple[int, ...]:
        """Global indices of the Gated DeltaNet layers."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == LINEAR_ATTENTION)

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Global indices of the full-attention layers."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == FULL_ATTENTION)


@dataclass(frozen=True)
class VisionConfig:
    """The vision tower's facts; names are those of `vision_config` in the checkpoint."""

    depth: int = 27
    hidden_size: int = 1152
    hidden_act: str = "gelu_pytorch_tanh"
    intermediate_size: int = 4304
    num_heads: int = 16
    in_channels: int = 3
    patch_size: int = 16
    spatial_merge_size: int = 2
    temporal_patch_size: int = 2
    out_hidden_size: int = 3584
    num_position_embeddings: int = 2304
    rope_theta: float = 10000.0

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def patch_width(self) -> int:
        """Numbers in one row of `pixel_values`."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def grid_side(self) -> int:
        """Side of the square table of learned positions."""
        return int(self.num_position_embeddings**0.5)

    @property
    def merge_unit(self) -> int:
        """Patch rows merged into one feature row."""
        return self.spatial_merge_size**2


@dataclass(frozen=True)
class ModelConfig:
    """A whole model. `vision` is None for a text-only checkpoint."""

    text: TextConfig
    vision: VisionConfig | None
    image_token_id: int
    video_token_id: int
    vision_start_token_id: int
    vision_end_token_id: int
    tie_word_embeddings: bool
    raw: dict[str, Any]
    """`config.json` as read, untouched."""


def read_config(path: Path) -> ModelConfig:
    """Read a `config.json` (or the folder that holds it)."""
    file = path / "config.json" if path.is_dir() else path
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"No config.json in {path}. Is this the folder of a Hugging Face checkpoint?") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON: {error}. Download it again.") from None
    return parse_config(raw, where=str(file))


def parse_config(raw: dict[str, Any], where: str = "config.json") -> ModelConfig:
    """Turn the content of a `config.json` into facts, refusing what this exporter does not cover."""
    if not isinstance(raw, dict):
        raise CheckpointError(f"{where} holds {type(raw).__name__}, not an object. Download it again.")
    model_type = raw.get("model_type")
    _refuse_other_families(raw, model_type, where)
    is_vlm = model_type in VLM_MODEL_TYPES and isinstance(raw.get("text_config"), dict)
    text_raw = raw["text_config"] if isinstance(raw.get("text_config"), dict) else raw
    vision_raw = raw.get("vision_config") if is_vlm else None
    text = _text_config(text_raw, where)
    vision = _vision_config(vision_raw, where) if isinstance(vision_raw, dict) else None
    if vision is not None and vision.out_hidden_size != text.hidden_size:
        raise CheckpointError(
            f"{where}: vision_config.out_hidden_size is {vision.out_hidden_size} but text_config.hidden_size is "
            f"{text.hidden_size}; image features would not fit the token embeddings. Check the config."
        )
    tied = raw.get("tie_word_embeddings", text_raw.get("tie_word_embeddings", False))
    return ModelConfig(
        text=text,
        vision=vision,
        image_token_id=raw.get("image_token_id", 248056),
        video_token_id=raw.get("video_token_id", 248057),
        vision_start_token_id=raw.get("vision_start_token_id", 248053),
        vision_end_token_id=raw.get("vision_end_token_id", 248054),
        tie_word_embeddings=bool(tied),
        raw=raw,
    )


def _refuse_other_families(raw: dict[str, Any], model_type: object, where: str) -> None:
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise CheckpointError(
            f"{where} declares a pre-quantised checkpoint (quantization_config.quant_method = {method!r}). "
            "Export from the original bf16 checkpoint instead."
        )
    if model_type in VLM_MODEL_TYPES + TEXT_MODEL_TYPES:
        return
    hint = "mixture-of-experts models are not covered" if "moe" in str(model_type) else "another model family"
    raise CheckpointError(
        f"{where}: model_type is {model_type!r} ({hint}). This exporter covers the dense qwen3_5 family: "
        f"{', '.join(VLM_MODEL_TYPES + TEXT_MODEL_TYPES)}."
    )


def _known(cls: type, raw: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(cls)}
    return {key: value for key, value in raw.items() if key in names and value is not None}


def _text_config(raw: dict[str, Any], where: str) -> TextConfig:
    values = _known(TextConfig, raw)
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    for key in ("rope_theta", "partial_rotary_factor", "mrope_section"):
        if key in rope:
            values[key] = rope[key]
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in ("default", "mrope"):
        raise CheckpointError(f"{where}: rope_type {rope_type!r} is not covered, only 'default'.")
    if "mrope_section" in values:
        values["mrope_section"] = tuple(values["mrope_section"])
    layers = values.get("num_hidden_layers", TextConfig.num_hidden_layers)
    interval = raw.get("full_attention_interval", 4)
    kinds = values.get("layer_types") or [
        LINEAR_ATTENTION if (i + 1) % interval else FULL_ATTENTION for i in range(layers)
    ]
    values["layer_types"] = tuple(kinds)
    config = TextConfig(**values)
    _check_text(config, where)
    return config


def _check_text(config: TextConfig, where: str) -> None:
    unknown = set(config.layer_types) - {LINEAR_ATTENTION, FULL_ATTENTION}
    if unknown or len(config.layer_types) != config.num_hidden_layers:
        raise CheckpointError(
            f"{where}: layer_types must name {config.num_hidden_layers} layers, each {LINEAR_ATTENTION!r} or "
            f"{FULL_ATTENTION!r}; found {len(config.layer_types)} and {sorted(unknown) or 'no unknown kinds'}."
        )
    if config.hidden_act != "silu" or config.attention_bias:
        raise CheckpointError(f"{where}: only hidden_act 'silu' and attention_bias false are covered.")
    if sum(config.mrope_section) * 2 != config.rotary_dim:
        raise CheckpointError(
            f"{where}: mrope_section {list(config.mrope_section)} sums to {sum(config.mrope_section)}, but the "
            f"rotary dimension {config.rotary_dim} needs {config.rotary_dim // 2}."
        )
    for many, few in (
        ("num_attention_heads", "num_key_value_heads"),
        ("linear_num_value_heads", "linear_num_key_heads"),
    ):
        if getattr(config, many) % getattr(config, few):
            raise CheckpointError(f"{where}: {many} ({getattr(config, many)}) is no multiple of {few}.")


def _vision_config(raw: dict[str, Any], where: str) -> VisionConfig:
    values = _known(VisionConfig, raw)
    for key in ("patch_size", "temporal_patch_size"):
        if isinstance(values.get(key), list):
            values[key] = values[key][-1]
    rope = raw.get("rope_parameters") or {}
    if "rope_theta" in rope:
        values["rope_theta"] = rope["rope_theta"]
    config = VisionConfig(**values)
    if raw.get("deepstack_visual_indexes"):
        raise CheckpointError(f"{where}: deepstack_visual_indexes is set; DeepStack (Qwen3-VL) is not covered.")
    if config.hidden_act != "gelu_pytorch_tanh":
        raise CheckpointError(f"{where}: vision hidden_act {config.hidden_act!r} is not covered.")
    return config
