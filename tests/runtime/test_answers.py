"""Greedy answers equal Transformers' `generate()`, token for token: text, pictures, videos, second turns."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from qwen_export.runtime.chat import Chat
from qwen_export.runtime.preprocess import Media
from qwen_export.runtime.prompt import user_message
from qwen_export.runtime.sampling import end_tokens
from qwen_export.runtime.video import prepare_video, read_settings
from tests.runtime.transformers_judge import Processor, greedy

KINDS = ("text", "picture", "three pictures", "video", "second turn")
NEW_TOKENS = 64
QUESTION = "what which part is the red blue green circle square left right above below of how many are there"
TRAINED = os.environ.get("QWEN_EXPORT_TRAINED_CHECKPOINT", str(Path(__file__).parents[1] / "assets" / "tiny-vlm"))


@dataclass(frozen=True)
class Case:
    """One seeded prompt."""

    kind: str
    seed: int
    questions: tuple[str, ...]
    images: tuple[Image.Image, ...]
    frames: tuple[Image.Image, ...]


def picture(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Random shapes on a random ground: no two alike, nothing symmetric."""
    image = Image.new("RGB", (width, height), tuple(int(c) for c in rng.integers(0, 256, 3)))
    draw = ImageDraw.Draw(image)
    for _ in range(5):
        x, y = rng.integers(0, width), rng.integers(0, height)
        box = [int(x), int(y), int(x + rng.integers(8, width)), int(y + rng.integers(8, height))]
        shape = draw.ellipse if rng.random() < 0.5 else draw.rectangle
        shape(box, fill=tuple(int(c) for c in rng.integers(0, 256, 3)))
    return image


def make_case(kind: str, seed: int) -> Case:
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    count = {"picture": 1, "three pictures": 3, "second turn": seed % 2}.get(kind, 0)
    sizes = rng.integers(60, 260, size=(3, 2))
    images = tuple(picture(rng, *map(int, sizes[i])) for i in range(count))
    frames = tuple(picture(rng, 120, 90) for _ in range(3 + seed)) if kind == "video" else ()
    questions = tuple(
        " ".join(rng.choice(QUESTION.split(), size=rng.integers(3, 12))) + "?" for _ in range(1 + ("turn" in kind))
    )
    return Case(kind, seed, questions, images, frames)


def next_turn(tokens: list[int], ends: frozenset[int], mark: int, question: str, processor: Processor) -> list[int]:
    """What follows the first prompt, spelled out: the answer, its end mark, the next question."""
    said = tokens[:-1] if tokens[-1] in ends else tokens
    text = f"\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    return [*said, mark, *processor.tokenizer(text)["input_ids"]]


def judged(case: Case, folder: Path, model: Any, ends: frozenset[int], video: Media | None) -> list[list[int]]:
    """Transformers' answers to every turn."""
    import torch

    processor = Processor(folder)
    message = user_message(case.questions[0], [Media(k, np.empty(0), (1, 1, 1), "") for k in kinds_of(case)])
    text = processor.tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    inputs = processor.inputs(text, list(case.images), video, frames=len(case.frames))
    answers = [greedy(model, inputs, NEW_TOKENS, sorted(ends))]
    for question in case.questions[1:]:
        mark = processor.tokenizer.convert_tokens_to_ids("<|im_end|>")
        more = torch.tensor([next_turn(answers[-1], ends, mark, question, processor)])
        inputs["input_ids"] = torch.cat([inputs["input_ids"], more], dim=1)
        inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(more)], dim=1)
        answers.append(greedy(model, inputs, NEW_TOKENS, sorted(ends)))
    return answers


def kinds_of(case: Case) -> list[str]:
    return ["image"] * len(case.images) + ["video"] * bool(case.frames)


def check(case: Case, package: Any, folder: Path, model: Any) -> None:
    ends = end_tokens(package.folder, package.config)
    video = prepare_video(case.frames, read_settings(folder)) if case.frames else None
    expected = judged(case, folder, model, ends, video)
    chat = Chat(package)
    for turn, question in enumerate(case.questions):
        media: dict[str, Any] = {"images": case.images, "video": case.frames or None} if turn == 0 else {}
        streamed: list[str] = []
        answer = chat.ask(question, max_new_tokens=NEW_TOKENS, on_text=streamed.append, **media)
        assert list(answer.tokens) == expected[turn], f"{case.kind}, seed {case.seed}, turn {turn}"
        assert "".join(streamed) == answer.text
        assert answer.ended == (expected[turn][-1] in ends)
        assert answer.statistics.new_tokens == len(expected[turn])


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full), pytest.param(2, marks=pytest.mark.full),
                                  pytest.param(3, marks=pytest.mark.full)])  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_synthetic_checkpoint(kind, seed, tiny_package, tiny_checkpoint, tiny_upstream):
    check(make_case(kind, seed), tiny_package, tiny_checkpoint, tiny_upstream)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, export_tiny):
    """A trained checkpoint, its package and Transformers' model of it."""
    import torch
    from transformers import Qwen3_5ForConditionalGeneration

    folder = Path(TRAINED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Qwen3_5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return export_tiny(folder), folder, model.eval()


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_trained_checkpoint(kind, seed, trained):
    package, folder, model = trained
    check(make_case(kind, seed), package, folder, model)
