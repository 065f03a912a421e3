"""Prompts equal Transformers': template, placeholder counts, timestamps, token ids."""

from __future__ import annotations

import re

import pytest

from qwen_export.errors import InputError, PackageError
from qwen_export.model_config import read_config
from qwen_export.runtime.preprocess import ImagePreprocessor
from qwen_export.runtime.prompt import PromptBuilder, TextStream, user_message
from qwen_export.runtime.video import prepare_video, read_settings
from tests.runtime.odd_pictures import marker
from tests.runtime.transformers_judge import Processor

SIZES = [(160, 128), (96, 200)]


@pytest.fixture(scope="module")
def builder(tiny_checkpoint):
    return PromptBuilder(tiny_checkpoint, read_config(tiny_checkpoint))


@pytest.fixture(scope="module")
def pictures(tiny_checkpoint):
    preprocessor = ImagePreprocessor(tiny_checkpoint)
    return [preprocessor.prepare(marker(*size)) for size in SIZES]


@pytest.fixture(scope="module")
def video(tiny_checkpoint):
    frames = [marker(96, 64)] * 7
    return prepare_video(frames, read_settings(tiny_checkpoint), fps=3)


@pytest.mark.parametrize("order", ["", "i", "ii", "v", "iv", "vi", "iiv", "ivi"])
@pytest.mark.parametrize("thinking", [False, True])
def test_ids_equal_transformers(tiny_checkpoint, builder, pictures, video, order, thinking):
    stock = {"i": list(pictures), "v": [video]}
    shown = [marker(*size) for size in SIZES[: order.count("i")]]
    media = [stock[kind].pop(0) for kind in order]
    messages = [{"role": "system", "content": "Be brief."}, user_message("What is left of the red part?", media)]
    judge = Processor(tiny_checkpoint)
    text = judge.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
    )
    expected = judge.inputs(text, shown, video if "v" in order else None, fps=3.0, frames=7)["input_ids"][0].tolist()
    prompt = builder.encode(builder.render(messages, thinking=thinking), media)
    assert prompt.input_ids.tolist() == expected
    if order == "v":
        assert re.findall(r"<([\d.]+) seconds>", builder.expand(text, media)) == ["0.2", "0.8", "1.5", "2.0"]


def test_next_turn_continues_the_rendered_conversation(builder):
    first, second = user_message("Hello"), user_message("And now?")
    whole = builder.render([first, {"role": "assistant", "content": "ANSWER"}, second])
    assert whole.endswith("ANSWER" + builder.render_next_turn(second))
    assert builder.render_next_turn(second).startswith("<|im_end|>\n<|im_start|>user\nAnd now?")


@pytest.mark.parametrize("text, count", [("<|image_pad|>", 0), ("<|image_pad|><|image_pad|>", 1), ("none", 1)])
def test_more_or_fewer_placeholders_than_images(builder, pictures, text, count):
    with pytest.raises(InputError, match=r"image placeholder\(s\)"):
        builder.encode(text, pictures[:count])


def test_media_must_be_in_prompt_order(builder, pictures, video):
    with pytest.raises(InputError, match="order"):
        builder.encode("<|image_pad|> then <|video_pad|>", [video, pictures[0]])


def test_empty_prompt_and_foreign_tokenizer_are_refused(builder, tiny_checkpoint, tmp_path):
    with pytest.raises(InputError, match="empty"):
        builder.encode("")
    with pytest.raises(PackageError, match=r"tokenizer\.json"):
        PromptBuilder(tmp_path, read_config(tiny_checkpoint))
    small = PromptBuilder(tiny_checkpoint, read_config(tiny_checkpoint))
    object.__setattr__(small.config.text, "vocab_size", 50)
    with pytest.raises(PackageError, match="vocabulary ends at 49"):
        small.encode("zzz<|im_end|>")


def test_stream_never_cuts_a_character(builder):
    text = "naïve 図 🙂 done\nnext line: ü"
    ids = builder.tokenizer(text)["input_ids"]
    assert len(ids) > len(text.split())
    stream = TextStream(builder)
    pieces = [stream.push(token) for token in ids]
    assert "".join(pieces) + stream.flush() == text
    assert not any("�" in piece for piece in pieces)


def test_stream_shows_bytes_that_never_become_a_character(builder):
    ids = builder.tokenizer("🙂")["input_ids"][:-1]
    stream = TextStream(builder)
    assert "".join(stream.push(token) for token in ids) == ""
    assert stream.flush() == builder.decode(ids) != ""
