"""A real byte-level BPE tokenizer whose special tokens stand at the ids that the config names.

The merges are trained on the small text below. Where the official vocabulary is larger than such training can fill
(248,044 entries in the 27B model), the rest are placeholder entries that no text ever meets: ids must run without a
gap up to the special tokens.
"""

from __future__ import annotations

import json
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from qwen_export.errors import InternalError, UsageError
from qwen_export.model_config import ModelConfig

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
IMAGE_PAD, VIDEO_PAD = "<|image_pad|>", "<|video_pad|>"
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
CONTROL_TOKENS = (
    END_OF_TEXT, IM_START, IM_END, "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>",
    "<|quad_start|>", "<|quad_end|>", VISION_START, VISION_END, "<|vision_pad|>", IMAGE_PAD, VIDEO_PAD,
)  # fmt: skip
"""In official order: they follow the vocabulary without a gap."""
MARKUP_TOKENS = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip
"""Next in official order; added, but not special: decoding keeps them."""

_BYTES = 256
_MAX_TRAINED = 4096
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen3.5 cuts text before merging."""

_TEXT = """What is shown in the picture? Describe the image in one sentence.\n\n
The red circle is labelled A and the blue square is labelled B.\n\n
A. left\nB. right\nC. above\nD. below\nAnswer with the option's letter from the given choices directly.\n\n
Which part of the diagram is it that the arrow points to, and how many parts are there in all?\n\n
user\nassistant\nsystem\nHello, world! How are you today? I'm fine; they're here, it's late, and we've seen enough.\n
Question: what colour has the triangle?\nAnswer: green.\n\n
The video shows a small ball that moves from the top to the bottom while the background stays white.\n
def main(argument):\n    return [value for value in argument if value is not None]\n\n
Über allen Gipfeln ist Ruh. La vie est belle. El niño come. 你好,世界。图片里有什么?\n
0 1 2 3 4 5 6 7 8 9 10 100 1,000 3.14 <0.1 seconds>\n"""


def token_ids(config: ModelConfig) -> dict[str, int]:
    """Added token -> id: the official order, moved so that the ids named by the config hold."""
    size = config.text.vocab_size
    pinned = {
        IMAGE_PAD: config.image_token_id,
        VIDEO_PAD: config.video_token_id,
        VISION_START: config.vision_start_token_id,
        VISION_END: config.vision_end_token_id,
    }
    first = config.image_token_id - CONTROL_TOKENS.index(IMAGE_PAD)
    if config.vision is None and max(pinned.values()) >= size:
        # A text-only config may leave the media ids at their defaults, outside a small vocabulary.
        pinned, first = {}, size - len(CONTROL_TOKENS + MARKUP_TOKENS)
    free = (i for i in range(max(first, _BYTES), size) if i not in pinned.values())
    out = {}
    for token in CONTROL_TOKENS + MARKUP_TOKENS:
        place = pinned[token] if token in pinned else next(free, None)
        if place is not None:
            out[token] = place
    missing = [token for token in (END_OF_TEXT, IM_START, IM_END) if token not in out]
    outside = [token for token, i in pinned.items() if not _BYTES <= i < size]
    if missing or outside or len(set(out.values())) < len(out):
        raise UsageError(
            f"The config leaves no room for a byte-level tokenizer: {', '.join(missing + outside) or 'its media ids'} "
            f"must have ids of their own from {_BYTES} (below are the bytes) to {size - 1} (vocab_size is {size}). "
            "Raise vocab_size or move the ids."
        )
    return dict(sorted(out.items(), key=lambda item: item[1]))


def build_tokenizer(config: ModelConfig) -> Tokenizer:
    """Train the tokenizer and add the special tokens at their ids."""
    ids = token_ids(config)
    first, last = min(ids.values()), max(ids.values())
    names = {i: token for token, i in ids.items()}
    tokenizer = _bpe(*_vocabulary(first))
    added = [names.get(i, f"<|reserved_{i}|>") for i in range(first, last + 1)]
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=token not in MARKUP_TOKENS) for token in added])
    wrong = [token for i, token in enumerate(added, first) if tokenizer.token_to_id(token) != i]
    if wrong:
        raise InternalError(f"The tokenizer did not place {wrong[0]} at the id that the config names.")
    return tokenizer


def _vocabulary(size: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Train up to `size` entries and fill up with placeholders."""
    trained = _bpe({}, [])
    trained.train_from_iterator(
        [_TEXT],
        trainers.BpeTrainer(
            vocab_size=min(size, _MAX_TRAINED),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    model = json.loads(trained.to_str())["model"]
    vocab: dict[str, int] = model["vocab"]
    vocab |= {f"<|unused_{i}|>": i for i in range(len(vocab), size)}
    return vocab, [(left, right) for left, right in model["merges"]]


def _bpe(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def tokenizer_config(config: ModelConfig) -> dict[str, Any]:
    """Content of `tokenizer_config.json`."""
    return {
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": IM_END,
        "errors": "replace",
        "model_max_length": config.text.max_position_embeddings,
        "pad_token": END_OF_TEXT,
        "split_special_tokens": False,
        "tokenizer_class": "Qwen3_5Tokenizer",
        "unk_token": None,
    }
