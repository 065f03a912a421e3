"""Make training data in worker processes, the same for the same seed whatever the machine's speed.

The trainer asks each worker in turn for numbered groups, and reads the answers in the order it asked. So it
knows what is still to come when a stage changes, and a resumed run asks for the numbers that come next.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tiny_vlm.assets import IMAGE, VISION_END, VISION_START
from tiny_vlm.questions import Question, ask_several
from tiny_vlm.scenes import COLOURS, LABELS, SHAPES, Part, draw_scene
from tiny_vlm.sizes import GRIDS, choose_size, fit

MAX_PARTS = 9
_PER_WORKER = 3
"""Groups asked of each worker ahead of use."""


@dataclass(frozen=True)
class Task:
    """What kind of pictures and questions a group holds."""

    pictures: int
    least_parts: int
    most_parts: int
    turns: int
    letters: float
    """Share of multiple choice."""


@dataclass(frozen=True)
class Group:
    """Conversations about pictures of one size."""

    grid: tuple[int, int]
    pictures: np.ndarray
    """uint8 [n, height, width, 3]."""
    ids: np.ndarray
    """int64 [n, length], padded on the right."""
    learn: np.ndarray
    """bool [n, length]: tokens the model must say."""
    parts: np.ndarray
    """int64 [n, MAX_PARTS, 4]: image token of the part's middle (-1: none), label, colour, shape."""


class Writer:
    """Conversations as token ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.pad = tokenizer.token_to_id("<|endoftext|>")
        self._image = tokenizer.token_to_id(IMAGE)
        self._open = self._ids(f"<|im_start|>user\n{VISION_START}")
        self._close = self._ids(VISION_END)
        self.start = len(self._open)
        """Index of the first image token."""

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def conversation(self, questions: Sequence[Question], image_tokens: int) -> tuple[list[int], list[bool]]:
        """Token ids, and which of them the model must say."""
        ids = [*self._open, *[self._image] * image_tokens, *self._close]
        learn = [False] * len(ids)
        for turn, question in enumerate(questions):
            said = self._ids(f"{question.reply}<|im_end|>")
            user = "" if turn == 0 else "\n<|im_start|>user\n"
            heard = self._ids(f"{user}{question.prompt}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
            ids += heard + said
            learn += [False] * len(heard) + [True] * len(said)
        return ids, learn


def make_group(rng: Random, task: Task, writer: Writer) -> Group:
    """One group; everything in it follows from `rng`."""
    grid = rng.choice(GRIDS)
    pictures, texts, parts = [], [], []
    for _ in range(task.pictures):
        count = rng.randint(task.least_parts, task.most_parts)
        scene = draw_scene(rng, choose_size(rng, grid), count)
        pictures.append(np.asarray(fit(scene.picture, grid)))
        questions = ask_several(rng, scene.parts, task.turns, task.letters)
        texts.append(writer.conversation(questions, grid[0] * grid[1]))
        parts.append([_describe_part(part, grid) for part in scene.parts])
    length = max(len(ids) for ids, _ in texts)
    ids = np.full((len(texts), length), writer.pad, np.int64)
    learn = np.zeros((len(texts), length), bool)
    where = np.full((len(texts), MAX_PARTS, 4), -1, np.int64)
    for row, ((tokens, flags), found) in enumerate(zip(texts, parts, strict=True)):
        ids[row, : len(tokens)] = tokens
        learn[row, : len(tokens)] = flags
        where[row, : len(found)] = found
    return Group(grid, np.stack(pictures), ids, learn, where)


def _describe_part(part: Part, grid: tuple[int, int]) -> tuple[int, int, int, int]:
    token = int(part.y * grid[0]) * grid[1] + int(part.x * grid[1])
    return token, LABELS.index(part.label), list(COLOURS).index(part.colour), SHAPES.index(part.shape)


class Source:
    """Groups from worker processes, in a fixed order."""

    def __init__(self, tokenizer: Tokenizer, workers: int, seed: int, first: int = 0) -> None:
        self.number = first
        """The next group to be asked for."""
        self._seed = seed
        self._asked: deque[int] = deque()
        # Spawned, not forked: the trainer already runs CUDA threads.
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, tokenizer.to_str()), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def groups(self, task: Task) -> Iterator[Group]:
        """Groups without end."""
        while self._asked:
            # Asked for under an earlier task, and a known number: a queue that workers refill would never run dry.
            self._pipes[self._asked.popleft()].recv()
        while True:
            while len(self._asked) < _PER_WORKER * len(self._pipes):
                self._pipes[self.number % len(self._pipes)].send((f"{self._seed}/{self.number}", task))
                self._asked.append(self.number % len(self._pipes))
                self.number += 1
            yield self._pipes[self._asked.popleft()].recv()

    def close(self) -> None:
        """End the workers."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(5)


def _work(pipe: Any, tokenizer: str) -> None:
    writer = Writer(Tokenizer.from_str(tokenizer))
    while True:
        try:
            seed, task = pipe.recv()
            pipe.send(make_group(Random(seed), task, writer))
        except (EOFError, KeyboardInterrupt, BrokenPipeError):
            return
