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

from qwen_export.errors import UsageError
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
    may_end: bool = False
    """Whether an end token ends the answer; otherwise none is chosen, so that all see as many decode steps."""


QUESTIONS = (
    Question("text, until it ends", "Name three colours.", may_end=True),
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
        new_tokens: greedy tokens compared per prompt.

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
    cases, notes = [], [*facts.remarks(config["model"])]
    for question in QUESTIONS:
        if question.sizes and not facts.has_vision:
            continue
        prompt = feeder.prompt([{"role": "user", "content": _content(question)}])
        if len(prompt.input_ids) + new_tokens > feeder.context_length:
            notes.append(f"{question.name}: left out, {len(prompt.input_ids)} prompt tokens do not fit the package.")
            continue
        if progress:
            progress.stage(f"ask: {question.name}")
        cases.append(_ask(question, prompt, feeder, model, engine, list(facts.choose().end), new_tokens))
    notes += native_notes(feeder, model, pictures(((400, 304), (250, 100))))
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


def _content(question: Question) -> Any:
    parts = [{"type": "image", "image": picture} for picture in pictures(question.sizes)]
    return [*parts, {"type": "text", "text": question.text}] if parts else question.text


def _ask(
    question: Question, prompt: Prompt, feeder: Feeder, model: Any, engine: Engine, ends: list[int], new_tokens: int
) -> GenAICase:
    expected, wanted = _greedy(engine, prompt, new_tokens, ends, question.may_end)
    found: list[int] = []
    worst = float("nan")
    shortest = 0 if question.may_end else len(prompt.input_ids) + new_tokens
    greedy = {"do_sample": False, "repetition_penalty": 1.0, "min_length": shortest}
    error = ""
    try:
        generator = feeder.generator(model, prompt, max_new_tokens=new_tokens, **greedy)
        while not generator.is_done():
            if len(found) < len(expected) and found == expected[: len(found)]:
                difference = _difference(generator.get_logits(), wanted[len(found)])
                worst = difference if np.isnan(worst) else max(worst, difference)
            generator.generate_next_token()
            found.append(int(generator.get_next_tokens()[0]))
    except RuntimeError as refused:
        error = str(refused).strip().splitlines()[0]
    return GenAICase(question.name, len(prompt.input_ids), tuple(expected), tuple(found), worst, error)


def _difference(found: Any, wanted: np.ndarray) -> float:
    """Largest absolute difference of the last position's logits; infinite where one is not finite."""
    last = np.asarray(found, dtype=np.float32).reshape(-1)[-len(wanted) :]
    return float(np.nan_to_num(np.abs(last - wanted), nan=np.inf).max())


def _greedy(
    engine: Engine, prompt: Prompt, new_tokens: int, ends: list[int], may_end: bool
) -> tuple[list[int], list[np.ndarray]]:
    """`run`'s tokens and the logits [V] behind each."""
    logits, state = engine.prefill([prompt])
    tokens: list[int] = []
    seen: list[np.ndarray] = []
    while True:
        seen.append(logits[0])
        scores = logits[0].copy()
        if not may_end:
            scores[ends] = -np.inf
        tokens.append(int(np.argmax(scores)))
        if tokens[-1] in ends or len(tokens) == new_tokens:
            return tokens, seen
        logits, state = engine.decode(np.array(tokens[-1:], dtype=np.int64), state)
