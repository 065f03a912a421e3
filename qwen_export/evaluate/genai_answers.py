"""A package on ONNX Runtime GenAI, with the same pixels and prompt as on raw ONNX Runtime."""

from __future__ import annotations

import time

import numpy as np

from qwen_export.evaluate.answers import Reply, System, margin_of, package_identity, require_vision
from qwen_export.package import Package
from qwen_export.runtime.genai import Feeder, genai_version, open_model, read_genai_config
from qwen_export.runtime.images import open_image
from qwen_export.runtime.prompt import user_message
from qwen_export.runtime.sampling import end_tokens


class GenaiAnswerer:
    """A package that GenAI opened; each question has a generator of its own."""

    def __init__(self, package: Package, provider: str, threads: int | None = None) -> None:
        self._feeder = Feeder(package)
        self._model = open_model(package, provider=provider, threads=threads)
        self._ends = end_tokens(package.folder, package.config)
        self._vocabulary = package.config.text.vocab_size

    def answer(self, picture: bytes, name: str, prompt: str, max_new_tokens: int) -> Reply:
        """Answer about one picture file."""
        begun = time.perf_counter()
        media = self._feeder.open_image(open_image(picture, name))
        message = user_message(prompt, [media])
        message["content"][0]["image"] = media
        ready = self._feeder.prompt([message], thinking=False)
        prepared = time.perf_counter()
        generator = self._feeder.generator(self._model, ready, max_new_tokens=max_new_tokens, do_sample=False)
        tokens: list[int] = []
        steps: list[tuple[float, int]] = []
        first = prepared
        while not generator.is_done():
            # Before the choice: afterwards the logits of the next token would be computed.
            logits = np.asarray(generator.get_logits(), dtype=np.float32).reshape(-1, self._vocabulary)
            steps.append(margin_of(logits[-1]))
            generator.generate_next_token()
            if not tokens:
                first = time.perf_counter()
            tokens.append(int(generator.get_next_tokens()[0]))
        return Reply(
            text=self._feeder.decode(tokens),
            tokens=tuple(tokens),
            ended=tokens[-1] in self._ends,
            prompt_tokens=len(ready.input_ids),
            # GenAI runs the vision encoder as part of the prefill and tells no time of it.
            seconds={
                "preprocess": prepared - begun,
                "prefill": first - prepared,
                "decode": time.perf_counter() - first,
            },
            margins=tuple(margin for margin, _ in steps),
            runners_up=tuple(token for _, token in steps),
        )

    def close(self) -> None:
        """Free the model."""
        del self._model


def genai_system(package: Package, provider: str = "cpu", threads: int | None = None) -> System:
    """The package on GenAI.

    Raises:
        UsageError: GenAI is not installed, or the package takes no pictures.
        PackageError: the package has no files for GenAI.
    """
    require_vision(package)
    read_genai_config(package)
    facts = {
        "package": package_identity(package),
        "dtype": package.recipe.dtype,
        "provider": provider,
        "onnxruntime_genai": genai_version(),
    }
    return System("ort-genai", facts, lambda: GenaiAnswerer(package, provider, threads))
