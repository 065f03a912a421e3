"""genai-check: open a package in GenAI and compare its answers with `run`'s, prefill and decode, text and pictures.

Loading proves little: GenAI accepts many wrong files and fails, or answers wrongly, only when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from qwen_export.errors import QwenExportError, UsageError
from qwen_export.genai.files import check_complete
from qwen_export.genai.native import native_notes
from qwen_export.genai.report import GenAICase, GenAIReport
from qwen_export.genai.tokens import TokenFacts
from qwen_export.genai.wiring import audit_genai_files
from qwen_export.package import Package, open_package
from qwen_export.runtime.engine import Engine
from qwen_export.runtime.genai import (
    Feeder,
    genai_version,
    import_genai,
    named_provider,
    open_model,
    read_genai_config,
)
from qwen_export.runtime.prompt import Prompt
from qwen_export.runtime.session import Device
from qwen_export.weights import Progress

NEW_TOKENS = 16


@dataclass(frozen=True)
class Question:
    """One prompt of the check."""

    name: str
    text: str
    sizes: tuple[tuple[int, int], ...] = ()
    """Width and height of its pictures."""


QUESTIONS = (
    Question("text", "Name three colours."),
    Question("one picture", "What is in this picture?", ((200, 136),)),
    Question("three pictures of different size", "What changed?", ((96, 160), (230, 120), (144, 144))),
    Question("two pictures of one size", "Are these the same?", ((128, 128), (128, 128))),
    Question("longer text", "Which part is left of the red one, and how many are there above the blue circle? " * 4),
)


def check_genai(
    package: Package | str | Path,
    *,
    provider: str | None = None,
    new_tokens: int = NEW_TOKENS,
    threads: int | None = None,
    progress: Progress | None = None,
) -> GenAIReport:
    """Prove a package in GenAI.

    Args:
        provider: `cpu` or `cuda`; by default the one that genai_config.json names. `run` computes there too.
        new_tokens: greedy tokens compared per prompt, fewer where an answer ends.

    Raises:
        UsageError, PackageError: nothing could be judged: GenAI or its files are missing, the package is graph-only.
    """
    if new_tokens < 2:
        raise UsageError(f"At least 2 new tokens are needed to see a decode step, not {new_tokens}.")
    import_genai()
    opened = package if isinstance(package, Package) else open_package(package)
    check_complete(opened)
    config = read_genai_config(opened)
    facts = TokenFacts(opened)
    findings = tuple(audit_genai_files(opened, facts))
    where, version = provider or named_provider(config), genai_version()
    if findings:
        return GenAIReport(version, where, findings, (), tuple(facts.remarks(config["model"])))
    if progress:
        progress.stage("open in GenAI")
    model = open_model(opened, provider=provider, threads=threads)
    feeder, engine = Feeder(opened), Engine(opened, Device(where), threads)
    cases = []
    for question in QUESTIONS:
        if question.sizes and not facts.has_vision:
            continue
        if progress:
            progress.stage(f"ask: {question.name}")
        cases.append(_ask(question, feeder, model, engine, facts, new_tokens))
    notes = [*facts.remarks(config["model"]), *native_notes(feeder, model, pictures(((400, 304), (250, 100))))]
    return GenAIReport(version, where, findings, tuple(cases), tuple(notes))


def pictures(sizes: Sequence[tuple[int, int]]) -> list[Image.Image]:
    """Asymmetric coloured pictures: a mirrored, turned or colour-swapped one gives other tokens."""
    out = []
    for number, (width, height) in enumerate(sizes):
        y, x = np.mgrid[0:height, 0:width]
        red = 255 * x / max(width - 1, 1)
        green = 128 * y / max(height - 1, 1)
        blue = 200.0 * ((x // 9 + 2 * (y // 7) + number) % 5 == 0)
        out.append(Image.fromarray(np.stack([red, green, blue], axis=-1).astype(np.uint8)))
    return out


def _ask(
    question: Question, feeder: Feeder, model: Any, engine: Engine, facts: TokenFacts, new_tokens: int
) -> GenAICase:
    parts = [{"type": "image", "image": picture} for picture in pictures(question.sizes)]
    content: Any = [*parts, {"type": "text", "text": question.text}] if parts else question.text
    prompt = feeder.prompt([{"role": "user", "content": content}])
    ends = facts.choose().end
    expected, wanted_logits = _greedy(engine, prompt, new_tokens, ends)
    found: list[int] = []
    worst = float("nan")
    try:
        generator = feeder.generator(model, prompt, max_new_tokens=new_tokens, do_sample=False)
        while not generator.is_done():
            if len(found) < len(expected) and found == expected[: len(found)]:
                logits = np.asarray(generator.get_logits(), dtype=np.float32).reshape(-1)[-feeder.vocabulary :]
                worst = float(np.nanmax([worst, np.abs(logits - wanted_logits[len(found)]).max()]))
            generator.generate_next_token()
            found.append(int(generator.get_next_tokens()[0]))
    except QwenExportError:
        raise
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        return GenAICase(question.name, len(prompt.input_ids), tuple(expected), tuple(found), worst, reason)
    return GenAICase(question.name, len(prompt.input_ids), tuple(expected), tuple(found), worst)


def _greedy(engine: Engine, prompt: Prompt, new_tokens: int, ends: Sequence[int]) -> tuple[list[int], list[np.ndarray]]:
    """`run`'s tokens and the logits [V] behind each."""
    logits, state = engine.prefill([prompt])
    tokens: list[int] = []
    seen: list[np.ndarray] = []
    while True:
        seen.append(logits[0])
        tokens.append(int(np.argmax(logits[0])))
        if tokens[-1] in ends or len(tokens) == new_tokens:
            return tokens, seen
        logits, state = engine.decode(np.array(tokens[-1:], dtype=np.int64), state)
