"""Prompts equal Transformers': template, placeholder counts, timestamps, token ids."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
from transformers import AutoTokenizer
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.processing_utils import ProcessorMixin
from transformers.video_utils import VideoMetadata

from qwen_export.errors import InputError, PackageError
from qwen_export.model_config import read_config
from qwen_export.runtime.preprocess import ImagePreprocessor
from qwen_export.runtime.prompt import PromptBuilder, TextStream, user_message
from qwen_export.runtime.video import prepare_video, read_settings
from tests.runtime.odd_pictures import marker


@pytest.fixture(scope="module")
def builder(tiny_assets):
    return PromptBuilder(tiny_assets, read_config(tiny_assets))


@pytest.fixture(scope="module")
def pictures(tiny_assets):
    preprocessor = ImagePreprocessor(tiny_assets)
    return [preprocessor.prepare(marker(*size)) for size in ((160, 128), (96, 200))]


@pytest.fixture(scope="module")
def video(tiny_assets):
    frames = [marker(96, 64)] * 7
    return prepare_video(frames, read_settings(tiny_assets), fps=3)


class Judge:
    """Transformers' processor methods on an object that needs no torchvision."""

    def __init__(self, folder, images, video):
        self.tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        self.image_token, self.video_token, self.audio_token = "<|image_pad|>", "<|video_pad|>", None
        self.vision_start_token, self.vision_end_token = "<|vision_start|>", "<|vision_end|>"
        self.all_special_multimodal_tokens = [self.image_token, self.video_token]
        self.image_processor = SimpleNamespace(merge_size=2)
        self.video_processor = SimpleNamespace(merge_size=2, temporal_patch_size=2)
        self._calculate_timestamps = lambda *args: Qwen3VLProcessor._calculate_timestamps(self, *args)
        self.images = {"image_grid_thw": np.array([item.grid for item in images])}
        metadata = VideoMetadata(total_num_frames=7, fps=3.0, frames_indices=list(range(7)))
        self.videos = {"video_grid_thw": np.array([video.grid]), "video_metadata": [metadata]}

    def expand(self, text, num_images, num_videos):
        images = [Qwen3VLProcessor.replace_image_token(self, self.images, i) for i in range(num_images)]
        videos = [Qwen3VLProcessor.replace_video_token(self, self.videos, i) for i in range(num_videos)]
        return ProcessorMixin.get_text_with_replacements(self, [text], images, videos)[0][0]

    def ids(self, text):
        return self.tokenizer(text, return_token_type_ids=False)["input_ids"]


@pytest.mark.parametrize("order", ["", "i", "ii", "v", "iv", "vi", "iiv", "ivi"])
@pytest.mark.parametrize("thinking", [False, True])
def test_ids_equal_transformers(tiny_assets, builder, pictures, video, order, thinking):
    stock = {"i": list(pictures), "v": [video]}
    media = [stock[kind].pop(0) for kind in order]
    messages = [{"role": "system", "content": "Be brief."}, user_message("What is left of the red part?", media)]
    judge = Judge(tiny_assets, pictures, video)
    text = judge.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
    )
    expected = judge.expand(text, order.count("i"), order.count("v"))
    prompt = builder.encode(builder.render(messages, thinking=thinking), media)
    assert prompt.input_ids.tolist() == judge.ids(expected)
    assert builder.expand(text, media) == expected
    if order == "v":
        assert re.findall(r"<([\d.]+) seconds>", expected) == ["0.2", "0.8", "1.5", "2.0"]


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


def test_empty_prompt_and_foreign_tokenizer_are_refused(builder, tiny_assets, tmp_path):
    with pytest.raises(InputError, match="empty"):
        builder.encode("")
    with pytest.raises(PackageError, match=r"tokenizer\.json"):
        PromptBuilder(tmp_path, read_config(tiny_assets))
    small = PromptBuilder(tiny_assets, read_config(tiny_assets))
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
