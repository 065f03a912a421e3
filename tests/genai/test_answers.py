"""GenAI answers as Transformers' `generate()`: 20 prompts, 48 greedy tokens, fed through the helper."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from qwen_export.export import export_vlm
from qwen_export.genai import add_genai_files
from qwen_export.package import open_package
from qwen_export.runtime.chat import Chat
from qwen_export.runtime.genai import Feeder, new_tokens, open_model
from qwen_export.runtime.prompt import user_message
from qwen_export.runtime.sampling import end_tokens
from tests.genai.conftest import RECIPE
from tests.genai.questions import KINDS, NEW_TOKENS, conversation, make_question
from tests.runtime.transformers_judge import Processor, greedy

TRAINED = os.environ.get("QWEN_EXPORT_TRAINED_CHECKPOINT", str(Path(__file__).parents[1] / "assets" / "tiny-vlm"))
QUESTIONS = [(kind, seed) for kind in KINDS for seed in range(5)]


def answer(feeder: Feeder, model: Any, text: str, images: list[Image.Image], *, may_end: bool = False) -> list[int]:
    """GenAI's greedy tokens. Unless the answer may end, no end token is chosen: all 48 steps are seen."""
    prompt = feeder.prompt(conversation(text, images))
    shortest = 0 if may_end else len(prompt.input_ids) + NEW_TOKENS
    made = feeder.generator(model, prompt, max_new_tokens=NEW_TOKENS, do_sample=False, min_length=shortest)
    return list(new_tokens(made))


def judged(
    folder: Path, model: Any, ends: list[int], text: str, images: list[Image.Image], **options: Any
) -> list[int]:
    """Transformers' tokens for the same conversation, prepared by Transformers' own processor."""
    processor = Processor(folder)
    messages = conversation(text, [None] * len(images))
    rendered = processor.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    inputs = processor.inputs(rendered, images)
    if not options:
        return greedy(model, inputs, NEW_TOKENS, ends)
    with torch.no_grad():
        out = model.generate(
            **inputs, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=ends, pad_token_id=ends[0], **options
        )
    return out[0, inputs["input_ids"].shape[1] :].tolist()


def test_twenty_prompts(feeder, model, genai_package, tiny_checkpoint, tiny_upstream):
    ends = sorted(end_tokens(genai_package.folder, genai_package.config))
    seen: set[int] = set()
    for kind, seed in QUESTIONS:
        text, images = make_question(kind, seed)
        expected = judged(tiny_checkpoint, tiny_upstream, ends, text, images, min_new_tokens=NEW_TOKENS)
        assert answer(feeder, model, text, images) == expected, f"{kind}, seed {seed}"
        assert len(expected) == NEW_TOKENS
        seen |= set(expected)
    assert len(seen) >= 20


@pytest.mark.parametrize(("kind", "seed"), [("text", 15), ("text", 16), ("three pictures", 11), ("equal pictures", 18)])
def test_answers_end_at_every_end_token(kind, seed, feeder, model, genai_package, tiny_checkpoint, tiny_upstream):
    ends = sorted(end_tokens(genai_package.folder, genai_package.config))
    text, images = make_question(kind, seed)
    expected = judged(tiny_checkpoint, tiny_upstream, ends, text, images)
    assert expected[-1] in ends and len(expected) < NEW_TOKENS, "this answer no longer ends by itself; choose another"
    assert answer(feeder, model, text, images, may_end=True) == expected


def test_videos_go_through_the_helper(feeder, model, genai_package):
    frames = [image for seed in range(5) for image in make_question("picture", seed)[1]]
    frames = [frame.resize((120, 96)) for frame in frames]
    parts = [{"type": "video", "video": frames}, {"type": "text", "text": "what moves?"}]
    prompt = feeder.prompt([{"role": "user", "content": parts}])
    found = list(new_tokens(feeder.generator(model, prompt, max_new_tokens=24, do_sample=False)))
    wanted = Chat(genai_package, threads=1).ask("what moves?", video=frames, max_new_tokens=24)
    assert prompt.media[0].grid[0] > 1
    assert found == list(wanted.tokens)


def test_a_second_turn_is_appended(feeder, model, genai_package):
    chat = Chat(genai_package, threads=1)
    first = chat.ask("what is red?", max_new_tokens=48)
    assert first.ended, "GenAI can only go on after an answer that ended; choose another question"
    prompt = feeder.prompt([user_message("what is red?")])
    generator = feeder.generator(model, prompt, max_new_tokens=300, do_sample=False)
    assert list(new_tokens(generator)) == list(first.tokens)
    generator.append_tokens(feeder.next_turn(user_message("and what is left of it?")))
    second = chat.ask("and what is left of it?", max_new_tokens=48)
    made = [token for token, _ in zip(new_tokens(generator), range(48), strict=False)]
    assert made[: len(second.tokens)] == list(second.tokens)


def test_later_turns_with_pictures_are_fed_whole(feeder, model, genai_package):
    text, images = make_question("three pictures", 0)
    conversation = [
        {"role": "user", "content": [{"type": "image", "image": images[0]}, {"type": "text", "text": text}]},
        {"role": "assistant", "content": "red."},
        {"role": "user", "content": [{"type": "image", "image": images[1]}, {"type": "text", "text": "and this?"}]},
    ]
    prompt = feeder.prompt(conversation)
    found = list(new_tokens(feeder.generator(model, prompt, max_new_tokens=24, do_sample=False)))
    from qwen_export.runtime.engine import Engine
    from qwen_export.runtime.generate import generate
    from qwen_export.runtime.sampling import Sampler, Sampling

    ends = end_tokens(genai_package.folder, genai_package.config)
    made = generate(
        Engine(genai_package, None, 1), [prompt], max_new_tokens=24, end_tokens=ends, sampler=Sampler(Sampling())
    )
    assert len(prompt.media) == 2
    assert found == list(made.tokens[0])


@pytest.mark.full
def test_trained_checkpoint(tmp_path):
    from transformers import Qwen3_5ForConditionalGeneration

    export_vlm(TRAINED, tmp_path / "package", recipe=RECIPE)
    add_genai_files(tmp_path / "package")
    package = open_package(tmp_path / "package")
    feeder, model = Feeder(package), open_model(package, threads=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        upstream = Qwen3_5ForConditionalGeneration.from_pretrained(TRAINED, dtype=torch.float32).eval()
    ends = sorted(end_tokens(package.folder, package.config))
    for kind, seed in QUESTIONS:
        text, images = make_question(kind, seed)
        options = {"min_new_tokens": NEW_TOKENS} if seed % 2 else {}
        expected = judged(Path(TRAINED), upstream, ends, text, images, **options)
        assert answer(feeder, model, text, images, may_end=not options) == expected, f"{kind}, seed {seed}"
