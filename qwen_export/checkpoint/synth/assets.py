"""The small files beside the weights: config, generation settings, chat template, image and video processor."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from qwen_export.checkpoint.synth.tokenizer import END_OF_TEXT, IM_END, build_tokenizer, token_ids, tokenizer_config
from qwen_export.model_config import ModelConfig, VisionConfig

_TOKENS_PER_IMAGE = (64, 16384)
_TOKENS_PER_VIDEO = (4, 24576)
"""Least and most placeholder tokens, as the official processor files allow them for a context of 262,144."""
_CONTEXT_SHARE = 16
"""An image may fill one sixteenth of the context, as in the official model."""


def write_assets(folder: Path, config: ModelConfig) -> None:
    """Write every file of the official layout but the weights; `config.json` last."""
    ids = token_ids(config)
    build_tokenizer(config).save(str(folder / "tokenizer.json"))
    template = resources.files(__package__).joinpath("chat_template.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8", newline="\n")
    write_json(folder / "tokenizer_config.json", tokenizer_config(config))
    write_json(
        folder / "generation_config.json",
        {
            "bos_token_id": ids[END_OF_TEXT],
            "do_sample": True,
            "eos_token_id": [ids[IM_END], ids[END_OF_TEXT]],
            "pad_token_id": ids[END_OF_TEXT],
            "temperature": 0.6,
            "top_k": 20,
            "top_p": 0.95,
        },
    )
    if config.vision is not None:
        write_json(folder / "preprocessor_config.json", _processor(config, "image", _TOKENS_PER_IMAGE))
        write_json(folder / "video_preprocessor_config.json", _processor(config, "video", _TOKENS_PER_VIDEO))
    write_json(folder / "config.json", config.raw)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON that is the same on every system."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")


def _processor(config: ModelConfig, kind: str, tokens: tuple[int, int]) -> dict[str, Any]:
    vision = config.vision
    assert isinstance(vision, VisionConfig)
    pixels_per_token = (vision.patch_size * vision.spatial_merge_size) ** 2
    least, most = tokens
    most = max(1, min(most, most * config.text.max_position_embeddings // (_CONTEXT_SHARE * _TOKENS_PER_IMAGE[1])))
    least = max(1, min(least, most // 16))
    classes = {"image": "Qwen2VLImageProcessor", "video": "Qwen3VLVideoProcessor"}
    return {
        "size": {"longest_edge": most * pixels_per_token, "shortest_edge": least * pixels_per_token},
        "patch_size": vision.patch_size,
        "temporal_patch_size": vision.temporal_patch_size,
        "merge_size": vision.spatial_merge_size,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor",
        f"{kind}_processor_type": classes[kind],
    }
