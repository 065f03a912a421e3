"""A system that answers by the picture's bytes alone, at once; as a program, an evaluation that can be killed."""

from __future__ import annotations

import sys
import time
import zlib
from pathlib import Path
from typing import Any

from qwen_export.errors import InputError
from qwen_export.evaluate import Ai2d, Reply, System, evaluate, select

TEXTS = ("A", "B", "C.", "D. so", "none of them", "b")


class FixedAnswerer:
    """Gives one of a few texts, and fails on a picture that is not one."""

    def __init__(self, salt: int, pause: float) -> None:
        self._salt, self._pause = salt, pause

    def answer(self, picture: bytes, name: str, prompt: str, max_new_tokens: int) -> Reply:
        """The same answer for the same picture and prompt."""
        time.sleep(self._pause)
        if not picture.startswith((b"\x89PNG", b"\xff\xd8")):
            raise InputError(f"{name}: not a picture.")
        # Two systems with neighbouring salts agree on most questions.
        number = zlib.crc32(picture + prompt.encode()) + (self._salt if len(picture) % 3 == 0 else 0)
        text = TEXTS[number % len(TEXTS)]
        tokens = (*text.encode(), 0)
        return Reply(
            text=text,
            tokens=tokens,
            ended=len(tokens) <= max_new_tokens,
            prompt_tokens=len(prompt),
            seconds={"preprocess": 0.001, "prefill": 0.002, "decode": 0.003},
            margins=tuple(float(token % 7) + 0.25 for token in tokens),
            runners_up=tuple(token + 1 for token in tokens),
        )

    def close(self) -> None:
        """Nothing to free."""


def fixed_system(name: str, salt: int = 0, pause: float = 0.0, **facts: Any) -> System:
    """A system for tests."""
    return System(name, {"salt": salt, **facts}, lambda: FixedAnswerer(salt, pause))


def main() -> None:
    """`python -m tests.evaluate.answering DATA OUTPUT`: two systems, a pause before each answer, always resuming."""
    data = Ai2d(Path(sys.argv[1]))
    systems = [fixed_system("one", 0, 0.004), fixed_system("two", 1, 0.004)]
    evaluate(systems, data, Path(sys.argv[2]), selection=select(len(data)), resume=True)


if __name__ == "__main__":
    main()
