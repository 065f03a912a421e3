"""The files beside the weights: tokenizer, chat template, image and video processor, generation settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tiny_vlm.questions import KINDS, ask
from tiny_vlm.scenes import COLOURS, PLACES, SHAPES, Part
from tiny_vlm.sizes import MAX_PIXELS, MERGE, MIN_PIXELS, PATCH

NUM_ENTRIES = 448
"""Byte-level entries; the added tokens follow them."""
VOCAB_SIZE = 480
END, PAD, IMAGE, VIDEO = "<|im_end|>", "<|endoftext|>", "<|image_pad|>", "<|video_pad|>"
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
_CONTROL = (
    END, PAD, "<|im_start|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>",
    "<|quad_start|>", "<|quad_end|>", VISION_START, VISION_END, "<|vision_pad|>", IMAGE, VIDEO,
)  # fmt: skip
_MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen3.5 cuts text before merging."""


def build_tokenizer() -> Tokenizer:
    """Train the byte-level tokenizer on questions of every kind; the added tokens stand right behind its entries."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_ENTRIES, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    if tokenizer.get_vocab_size() != NUM_ENTRIES:
        raise RuntimeError(f"The corpus gave {tokenizer.get_vocab_size()} entries instead of {NUM_ENTRIES}.")
    added = [AddedToken(token, normalized=False, special=True) for token in _CONTROL]
    tokenizer.add_tokens(added + [AddedToken(token, normalized=False, special=False) for token in _MARKUP])
    return tokenizer


def _corpus() -> list[str]:
    rng = Random(0)
    words = [*COLOURS, *SHAPES, *PLACES]
    # Every word alone, after a space, and the blank line of the template, often enough to become one entry each.
    text = [f"{word}\n\n" for word in words for _ in range(40)] + [f" {word}\n\n" for word in words for _ in range(40)]
    for i in range(1500):
        part = Part("K", rng.choice(tuple(COLOURS)), rng.choice(SHAPES), rng.randrange(9))
        question = ask(rng, [part], letters=i % 2 == 0, kind=KINDS[i % 6] if i % 2 == 0 else None)
        text.append(f"user\n{question.prompt}\nassistant\n\n\n{question.reply}")
    return text + ["system\nYou are a helpful assistant.\nPicture: image video shown labelled colour\n\n"] * 20


def write_assets(folder: Path, tokenizer: Tokenizer) -> None:
    """Write every file but config and weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    end, pad = tokenizer.token_to_id(END), tokenizer.token_to_id(PAD)
    _write_json(
        folder / "generation_config.json", {"do_sample": False, "eos_token_id": [end, pad], "pad_token_id": pad}
    )
    _write_json(
        folder / "tokenizer_config.json",
        {
            "add_prefix_space": False,
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": END,
            "errors": "replace",
            "model_max_length": 4096,
            "pad_token": PAD,
            "split_special_tokens": False,
            "tokenizer_class": "Qwen3_5Tokenizer",
            "unk_token": None,
        },
    )
    shared = {
        "size": {"longest_edge": MAX_PIXELS, "shortest_edge": MIN_PIXELS},
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": MERGE,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor",
    }
    _write_json(folder / "preprocessor_config.json", {**shared, "image_processor_type": "Qwen2VLImageProcessor"})
    _write_json(
        folder / "video_preprocessor_config.json",
        {
            **shared,
            "size": {"longest_edge": 8 * MAX_PIXELS, "shortest_edge": MIN_PIXELS},
            "video_processor_type": "Qwen3VLVideoProcessor",
        },
    )
    shutil.copyfile(Path(__file__).with_name("chat_template.jinja"), folder / "chat_template.jinja")


def _write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
