"""The synthetic tokenizer: real byte-level BPE, special tokens at the ids that the config names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qwen_export.checkpoint import config_names, load_config, open_config
from qwen_export.checkpoint.synth.tokenizer import CONTROL_TOKENS, MARKUP_TOKENS, build_tokenizer, token_ids
from qwen_export.errors import UsageError
from qwen_export.model_config import parse_config

TEXTS = (
    "What is shown in the picture?\n\nA. left\nB. right\n",
    "Über 你好 naïve é 🙂 \t tabs  and   spaces\r\n",
    "x = {'a': 1}  # it's <b>bold</b>",
    "\x00\x7f ÿ \u2028",
)


@pytest.mark.parametrize("name", config_names())
def test_special_tokens_stand_where_the_config_says(name: str) -> None:
    config = open_config(name)
    tokenizer = build_tokenizer(config)
    place = tokenizer.token_to_id
    assert place("<|image_pad|>") == config.image_token_id
    assert place("<|video_pad|>") == config.video_token_id
    assert place("<|vision_start|>") == config.vision_start_token_id
    assert place("<|vision_end|>") == config.vision_end_token_id
    assert tokenizer.get_vocab_size() <= config.text.vocab_size
    assert sorted(tokenizer.get_vocab().values()) == list(range(tokenizer.get_vocab_size()))
    for token in CONTROL_TOKENS + MARKUP_TOKENS:
        assert tokenizer.encode(f"a{token}b").ids[1] == place(token)


def test_the_27b_ids_are_the_official_ones() -> None:
    ids = token_ids(open_config("qwen3.8-27b"))
    assert (ids["<|endoftext|>"], ids["<|im_start|>"], ids["<|im_end|>"]) == (248044, 248045, 248046)
    assert (ids["<think>"], ids["</think>"]) == (248068, 248069)


@pytest.mark.parametrize("name", ["tiny", "mid"])
def test_text_comes_back_and_merges_are_at_work(name: str) -> None:
    tokenizer = build_tokenizer(open_config(name))
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids) == text
        assert max(ids) < min(token_ids(open_config(name)).values())
    assert len(tokenizer.encode(TEXTS[0]).ids) < len(TEXTS[0]) * 0.6
    assert len(tokenizer.encode("\n\n").ids) == 1


def test_transformers_and_tokenizers_agree(tiny_checkpoint: Path) -> None:
    from transformers import AutoTokenizer

    config = open_config(tiny_checkpoint)
    theirs = AutoTokenizer.from_pretrained(tiny_checkpoint, local_files_only=True)
    ours = build_tokenizer(config)
    assert type(theirs).__name__ == "Qwen3_5Tokenizer"
    assert theirs.eos_token == "<|im_end|>" and theirs.pad_token == "<|endoftext|>"
    for text in (
        *TEXTS,
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Hi<|im_end|>\n<think>\n\n</think>\n\n",
    ):
        ids = theirs(text)["input_ids"]
        assert ids == ours.encode(text).ids
        assert theirs.decode(ids) == text
    assert (
        theirs.decode(theirs("<think>x</think><|im_end|>")["input_ids"], skip_special_tokens=True) == "<think>x</think>"
    )


@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ({}, "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        ({"enable_thinking": False}, "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        ({"enable_thinking": True}, "<|im_start|>assistant\n<think>\n"),
    ],
)
def test_the_chat_template(tiny_checkpoint: Path, options: dict[str, Any], prompt: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint, local_files_only=True)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image"}, {"type": "video"}, {"type": "text", "text": "What?\n"}]},
        {"role": "assistant", "content": "A dog."},
        {"role": "user", "content": [{"image_url": "x"}, {"text": " Why? "}]},
    ]
    media = "<|vision_start|><|{}_pad|><|vision_end|>"
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        f"<|im_start|>user\n{media.format('image')}{media.format('video')}What?\n<|im_end|>\n"
        "<|im_start|>assistant\nA dog.<|im_end|>\n"
        f"<|im_start|>user\n{media.format('image')} Why? <|im_end|>\n"
        f"{prompt}"
    )
    labelled = tokenizer.apply_chat_template(messages[:2], tokenize=False, add_vision_id=True)
    assert (
        "Picture 1: <|vision_start|><|image_pad|>" in labelled and "Video 1: <|vision_start|><|video_pad|>" in labelled
    )
    closed = tokenizer.apply_chat_template(messages[:3], tokenize=False)
    assert closed.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\nA dog.<|im_end|>\n")


def test_ids_in_another_order_hold_too() -> None:
    raw = load_config("tiny") | {
        "image_token_id": 400,
        "video_token_id": 470,
        "vision_start_token_id": 301,
        "vision_end_token_id": 300,
    }
    tokenizer = build_tokenizer(parse_config(raw))
    places = [tokenizer.token_to_id(f"<|{name}|>") for name in ("image_pad", "video_pad", "vision_start", "vision_end")]
    assert places == [400, 470, 301, 300]
    assert sorted(tokenizer.get_vocab().values()) == list(range(tokenizer.get_vocab_size()))


@pytest.mark.parametrize("ids", [{"image_token_id": 600}, {"image_token_id": 100}, {"video_token_id": 460}])
def test_ids_that_cannot_be(ids: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="leaves no room for a byte-level tokenizer"):
        token_ids(parse_config(load_config("tiny") | ids))
