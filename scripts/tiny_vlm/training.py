"""The training loop: vision alone first, then questions in stages of growing difficulty, within a time budget."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

import torch
from torch.nn import functional as F

from tiny_vlm.data import Group, Source, Task
from tiny_vlm.network import HIDDEN, Vision, positions
from tiny_vlm.optimiser import make_optimisers
from tiny_vlm.scenes import COLOURS, LABELS, SHAPES

AUXILIARY = 0.2
"""Weight of the part-reading loss once questions are learned."""
SAVE_EVERY = 60.0
"""Seconds between checkpoints."""


@dataclass(frozen=True)
class Stage:
    """One step of the curriculum; it ends at an accuracy of first words or at a share of the time budget."""

    name: str
    parts: tuple[int, int]
    letters: float
    """Share of multiple choice."""
    accuracy: float
    until: float


STAGES = (
    Stage("vision", (1, 7), 0.0, 0.96, 0.12),
    Stage("one part", (1, 1), 0.0, 0.92, 0.22),
    Stage("two parts", (1, 2), 0.0, 0.90, 0.32),
    Stage("four parts", (1, 4), 0.3, 0.80, 0.52),
    Stage("five parts", (2, 5), 0.5, 0.84, 0.65),
    Stage("letters", (2, 5), 0.65, 2.0, 2.0),
)


@dataclass
class Progress:
    """Where a run stands; saved with every checkpoint."""

    step: int = 0
    stage: int = 0
    seconds: float = 0.0
    accuracy: float = 0.0
    stage_steps: int = 0
    history: list[tuple[int, float, str, float, float, float]] = field(default_factory=list)
    """step, seconds, stage, loss, accuracy, learning rate (as a share)."""


class PartReader(torch.nn.Module):
    """Reads label, colour and shape off the image token under a part; used in training only."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (len(LABELS), len(COLOURS), len(SHAPES))
        self.heads = torch.nn.ModuleList([torch.nn.Linear(HIDDEN, size) for size in sizes])

    def loss(self, features: list[torch.Tensor], parts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean loss and the share of parts read wholly right."""
        found, wanted = [], []
        for feature, part in zip(features, parts, strict=True):
            row, slot = (part[..., 0] >= 0).nonzero(as_tuple=True)
            found.append(feature[row, part[row, slot, 0]])
            wanted.append(part[row, slot, 1:])
        x, y = torch.cat(found), torch.cat(wanted)
        outs = [head(x) for head in self.heads]
        loss = torch.stack([F.cross_entropy(out, y[:, i]) for i, out in enumerate(outs)]).mean()
        right = torch.stack([out.argmax(-1) == y[:, i] for i, out in enumerate(outs)]).all(0)
        return loss, right.float().mean()


@dataclass
class Batch:
    """Groups on the device, padded to one length."""

    grids: list[tuple[int, int]]
    pictures: list[torch.Tensor]
    parts: list[torch.Tensor]
    ids: torch.Tensor
    learn: torch.Tensor
    positions: torch.Tensor


def make_batch(groups: list[Group], start: int, pad: int, device: torch.device) -> Batch:
    """Put groups together and on the device."""
    length = -(-max(group.ids.shape[1] for group in groups) // 32) * 32
    ids, learn, places = [], [], []
    for group in groups:
        extra = (0, length - group.ids.shape[1])
        ids.append(F.pad(torch.from_numpy(group.ids), extra, value=pad))
        learn.append(F.pad(torch.from_numpy(group.learn), extra))
        places.append(positions(start, *group.grid, length)[:, None].expand(3, len(group.ids), length))

    def there(tensor: torch.Tensor) -> torch.Tensor:
        return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)

    return Batch(
        [group.grid for group in groups],
        [there(torch.from_numpy(group.pictures)) for group in groups],
        [there(torch.from_numpy(group.parts)) for group in groups],
        there(torch.cat(ids)),
        there(torch.cat(learn)),
        there(torch.cat(places, dim=1)),
    )


class Trainer:
    """Model, optimisers and progress of one run."""

    def __init__(self, model: torch.nn.Module, start: int, pad: int, device: torch.device) -> None:
        self.model = model.to(device)
        self.vision = Vision(self.model.model.visual)
        self.reader = PartReader().to(device)
        self.optimisers = make_optimisers(self.model, self.reader)
        self.rates = [group["lr"] for optimiser in self.optimisers for group in optimiser.param_groups]
        self.progress = Progress()
        self.start, self.pad, self.device = start, pad, device
        self.peak, self.refining = 1.0, False
        """Highest learning rate, as a share of the usual one; and whether trained weights are refined."""

    def run(self, source: Source, settings: dict[str, int], budget: float, save: Callable[[], None]) -> None:
        """Train until `budget` seconds (of all runs together) are used.

        Args:
            settings: `groups` per batch and `pictures` per group.
            save: called every minute and at the end.
        """
        begun, before = time.monotonic(), self.progress.seconds
        saved = begun
        feed = None
        while (elapsed := before + time.monotonic() - begun) < budget:
            stage = STAGES[self.progress.stage]
            if feed is None:
                feed = _Feed(source.groups(_task(stage, settings["pictures"])), settings["groups"], self._batch)
            rate = self.peak * _rate(elapsed / budget, self.progress.stage_steps, self.progress.stage)
            loss, accuracy = self._step(feed.next(), rate, stage.name == "vision")
            progress = self.progress
            progress.step, progress.stage_steps, progress.seconds = progress.step + 1, progress.stage_steps + 1, elapsed
            # Reading a number stops the device, so it is done every tenth step.
            if progress.step % 10 == 0:
                keep = 0.8 if progress.stage_steps > 10 else 0.0
                progress.accuracy = keep * progress.accuracy + (1 - keep) * float(accuracy)
                progress.history.append((progress.step, elapsed, stage.name, float(loss), progress.accuracy, rate))
            if progress.step % 50 == 0:
                print(_line(progress.history[-1]), flush=True)
            done = progress.stage_steps >= 60 and progress.accuracy > stage.accuracy
            if progress.stage < len(STAGES) - 1 and (done or elapsed > stage.until * budget):
                where = f"step {progress.step}, {elapsed:.0f} s, right {progress.accuracy:.3f}"
                print(f"stage '{stage.name}' is over at {where}", flush=True)
                progress.stage, progress.stage_steps, progress.accuracy = progress.stage + 1, 0, 0.0
                feed.stop()
                feed = None
            if time.monotonic() - saved > SAVE_EVERY:
                save()
                saved = time.monotonic()
        if feed is not None:
            feed.stop()
        save()

    def _batch(self, groups: list[Group]) -> Batch:
        return make_batch(groups, self.start, self.pad, self.device)

    def _step(self, batch: Batch, rate: float, vision_only: bool) -> tuple[torch.Tensor, torch.Tensor]:
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)
        features = [self.vision(pictures) for pictures in batch.pictures]
        if vision_only:
            loss, accuracy = self.reader.loss(features, batch.parts)
            loss.backward()
        else:
            answers, targets, first = self.answer(batch, features)
            loss = F.cross_entropy(answers, targets)
            accuracy = (answers.argmax(-1) == targets)[first].float().mean()
            reading = 0.0 if self.refining else AUXILIARY * self.reader.loss(features, batch.parts)[0]
            (loss + reading).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        groups = [group for optimiser in self.optimisers for group in optimiser.param_groups]
        for group, full in zip(groups, self.rates, strict=True):
            group["lr"] = full * rate
        for optimiser in self.optimisers:
            optimiser.step()
        return loss.detach(), accuracy.detach()

    def answer(self, batch: Batch, features: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits, right ids, and whether an answer begins there, of every token that the model must say."""
        text = self.model.model.language_model
        x = text.embed_tokens(batch.ids)
        rows = torch.split(x, [len(feature) for feature in features])
        joined = [
            torch.cat([row[:, : self.start], feature, row[:, self.start + feature.shape[1] :]], dim=1)
            for row, feature in zip(rows, features, strict=True)
        ]
        # Padding stands on the right, where causal layers never look: no mask is needed.
        masks = {"full_attention": None, "linear_attention": None}
        hidden = text(
            inputs_embeds=torch.cat(joined), position_ids=batch.positions, attention_mask=masks, use_cache=False
        ).last_hidden_state
        said = batch.learn[:, 1:]
        first = said & ~batch.learn[:, :-1]
        return self.model.lm_head(hidden[:, :-1][said]), batch.ids[:, 1:][said], first[said]

    def state(self, source: Source) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {
            "model": self.model.state_dict(),
            "reader": self.reader.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "progress": vars(self.progress),
            "next_group": source.number,
        }

    def refine(self, weights: dict[str, torch.Tensor]) -> None:
        """Begin with trained weights: the last stage alone, at half the learning rate."""
        self.model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        self.progress.stage, self.peak, self.refining = len(STAGES) - 1, 0.5, True

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.model.load_state_dict(state["model"])
        self.reader.load_state_dict(state["reader"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.progress = Progress(**state["progress"])


class _Feed:
    """Batches made ready by a thread while the device computes."""

    def __init__(self, groups: Iterator[Group], per_batch: int, build: Callable[[list[Group]], Batch]) -> None:
        self._queue: Queue[Batch | BaseException] = Queue(maxsize=3)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(groups, per_batch, build), daemon=True)
        self._thread.start()

    def _fill(self, groups: Iterator[Group], per_batch: int, build: Callable[[list[Group]], Batch]) -> None:
        try:
            while not self._stopped.is_set():
                self._queue.put(build([next(groups) for _ in range(per_batch)]))
        except BaseException as error:  # It belongs to the thread that waits for the batch.
            self._queue.put(error)

    def next(self) -> Batch:
        """The next batch."""
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def stop(self) -> None:
        """End the thread; batches that are ready are dropped."""
        self._stopped.set()
        while self._thread.is_alive():
            # At most three batches wait here, and the thread makes no further one.
            while not self._queue.empty():
                self._queue.get_nowait()
            self._thread.join(0.05)


def _task(stage: Stage, pictures: int) -> Task:
    return Task(pictures, *stage.parts, turns=0 if stage.name == "vision" else 5, letters=stage.letters)


def _rate(share: float, stage_steps: int, stage: int) -> float:
    """Learning rate as a share: a short warm-up, flat, then down to nothing over the second half of the time."""
    warm = min(1.0, (stage_steps + 1) / (40 if stage < 2 else 1))
    return warm * min(1.0, max(0.0, (1.0 - share) / 0.5))


def _line(row: tuple[int, float, str, float, float, float]) -> str:
    step, seconds, stage, loss, accuracy, rate = row
    return f"{seconds:6.0f} s  step {step:5d}  {stage:10s}  loss {loss:.4f}  right {accuracy:.3f}  rate {rate:.2f}"


def write_history(path: Path, progress: Progress) -> None:
    """The loss curve as tab-separated text."""
    lines = ["step\tseconds\tstage\tloss\tright\trate"]
    lines += [f"{a}\t{b:.1f}\t{c}\t{d:.5f}\t{e:.4f}\t{f:.3f}" for a, b, c, d, e, f in progress.history]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
