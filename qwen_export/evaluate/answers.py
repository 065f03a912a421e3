"""What every answering system gives back, and the package on raw ONNX Runtime as one of them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from qwen_export.contract import VISION_ENCODER
from qwen_export.errors import UsageError
from qwen_export.package import Package
from qwen_export.runtime.engine import Engine
from qwen_export.runtime.generate import generate
from qwen_export.runtime.preprocess import ImagePreprocessor
from qwen_export.runtime.prompt import PromptBuilder, user_message
from qwen_export.runtime.sampling import Sampler, Sampling, end_tokens
from qwen_export.runtime.session import Device, check_runnable

STAGES = ("preprocess", "vision", "prefill", "decode")
"""Where the time of an answer goes: picture and prompt to numbers, vision encoder, rest of the first token, the others.
A system that cannot tell vision from prefill leaves vision out."""


@dataclass(frozen=True)
class Reply:
    """One greedy answer."""

    text: str
    """Without special tokens."""
    tokens: tuple[int, ...]
    """An end token counts."""
    ended: bool
    """False: cut off by the limit."""
    prompt_tokens: int
    seconds: dict[str, float]
    """Stage -> seconds."""
    margins: tuple[float, ...] = ()
    """How far the chosen token's logit lies above the next best, token by token; empty where logits are not seen."""
    runners_up: tuple[int, ...] = ()
    """The next best token of each step."""


class Answerer(Protocol):
    """Something that answers questions about pictures."""

    def answer(self, picture: bytes, name: str, prompt: str, max_new_tokens: int) -> Reply:
        """Answer about one picture file; raises InputError if the picture cannot be used."""

    def close(self) -> None:
        """Free its memory."""


@dataclass(frozen=True)
class System:
    """An answerer that is opened only when a question is left for it."""

    name: str
    facts: dict[str, Any]
    """What makes its answers comparable: package or checkpoint, dtype, provider, versions."""
    open: Callable[[], Answerer] = field(repr=False)


def margin_of(logits: np.ndarray) -> tuple[float, int]:
    """Of one row: how far the best logit lies above the second, and which token the second is."""
    best = int(np.argmax(logits))
    others = np.array(logits, dtype=np.float64)
    others[best] = -np.inf
    second = int(np.argmax(others))
    return float(logits[best]) - float(others[second]), second


class PackageAnswerer:
    """A package on raw ONNX Runtime."""

    def __init__(self, package: Package, device: Device, threads: int | None = None) -> None:
        self._images = ImagePreprocessor(package.folder)
        self._builder = PromptBuilder(package.folder, package.config)
        self._ends = end_tokens(package.folder, package.config)
        self._engine = Engine(package, device, threads)
        self._clock = _VisionClock(self._engine.graphs)
        # The engine reaches its graphs through this attribute alone, so the clock sees every vision run.
        self._engine.graphs = self._clock  # type: ignore[assignment]

    def answer(self, picture: bytes, name: str, prompt: str, max_new_tokens: int) -> Reply:
        """Answer about one picture file."""
        begun = time.perf_counter()
        media = self._images.prepare(picture, name)
        ready = self._builder.encode(self._builder.render([user_message(prompt, [media])], thinking=False), [media])
        prepared = time.perf_counter() - begun
        self._clock.seconds = 0.0
        sampler = _MarginSampler()
        made = generate(self._engine, [ready], max_new_tokens=max_new_tokens, end_tokens=self._ends, sampler=sampler)
        figures, vision = made.statistics, self._clock.seconds
        seconds = (prepared, vision, figures.time_to_first_token - vision, figures.decode_time)
        return Reply(
            text=self._builder.decode(made.tokens[0]),
            tokens=made.tokens[0],
            ended=made.ended[0],
            prompt_tokens=figures.prompt_tokens,
            seconds=dict(zip(STAGES, seconds, strict=True)),
            margins=tuple(margin for margin, _ in sampler.steps),
            runners_up=tuple(token for _, token in sampler.steps),
        )

    def close(self) -> None:
        """Free the sessions."""
        del self._engine, self._clock


class _MarginSampler(Sampler):
    """Greedy, and remembers how clear each choice was."""

    def __init__(self) -> None:
        super().__init__(Sampling())
        self.steps: list[tuple[float, int]] = []

    def choose(self, logits: np.ndarray) -> np.ndarray:
        """Token ids int64 [1] for logits [1, V]."""
        tokens = super().choose(logits)
        self.steps.append(margin_of(logits[0]))
        return tokens


class _VisionClock:
    """Graphs that add up the seconds spent in the vision encoder."""

    def __init__(self, graphs: Any) -> None:
        self._graphs = graphs
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graphs, name)

    def run_to_host(self, component: str, inputs: Any) -> Any:
        """Run a graph and copy its outputs to the host, which waits for the device."""
        begun = time.perf_counter()
        outputs = self._graphs.run_to_host(component, inputs)
        if component == VISION_ENCODER:
            self.seconds += time.perf_counter() - begun
        return outputs


def package_system(package: Package, device: Device, threads: int | None = None) -> System:
    """The package on raw ONNX Runtime.

    Raises:
        UsageError: the package takes no pictures, or cannot run on this device.
    """
    require_vision(package)
    check_runnable(package, device)
    import onnxruntime

    facts = {
        "package": package_identity(package),
        "dtype": package.recipe.dtype,
        "provider": device.provider,
        "onnxruntime": onnxruntime.__version__,
    }
    return System("ort", facts, lambda: PackageAnswerer(package, device, threads))


def require_vision(package: Package) -> None:
    """Refuse a text-only package."""
    if VISION_ENCODER not in package.components:
        raise UsageError(f"{package.folder} has no vision encoder; AI2D asks about pictures.")


def package_identity(package: Package) -> str:
    """A hash over what the manifest says of the graphs and their data."""
    files = {
        name: record.sha256 for name, record in package.manifest.files.items() if name.endswith((".onnx", ".data"))
    }
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
