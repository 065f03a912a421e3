"""The package's side of a case: its graphs, its own features, embeddings and states carried from call to call.

The tokens of the decode steps are the truth's (teacher forcing). Until the first step at which the package would have
chosen another one, that is the free run as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qwen_export.contract import BATCH, DECODER, EMBEDDING, PAST, TEXT, VISION_ENCODER, StateSpec, states
from qwen_export.package import Package
from qwen_export.runtime.positions import rope_positions, text_positions
from qwen_export.runtime.preprocess import IMAGE, VIDEO, stack_grids
from qwen_export.verify.cases import Case, sampled_rows
from qwen_export.verify.graph_runners import NUMPY, Arrays, Runner

NOT_FINITE = "not_finite/"
"""Prefix of counts, by layer, over all positions and not only the sampled ones."""
Truth = Callable[[str], np.ndarray]
"""Reads a tensor of the truth by name; it stands in for components that the package does not have."""


class Candidate:
    """Runs cases on a package."""

    def __init__(self, package: Package, runner: Runner) -> None:
        self.package, self.runner = package, runner
        self.config, self.recipe = package.config, package.recipe
        self.dtype = NUMPY[self.recipe.tensor_dtype]
        self.decoder = TEXT if TEXT in package.components else DECODER

    def has(self, component: str) -> bool:
        """Whether the package holds a component."""
        return component in self.package.components

    def too_long(self, case: Case) -> str:
        """Why a case cannot be run on this package, or nothing."""
        limit = self.recipe.static_length
        if limit is not None and case.length + case.steps > limit:
            return f"{case.length + case.steps} tokens do not fit the static cache of {limit}"
        return ""

    def encode(self, case: Case) -> Arrays:
        """`image_features` [F, D], and `vision/N` at the sampled rows."""
        layers = self.runner.layers(VISION_ENCODER)
        pixels = np.concatenate([item.pixel_values for item in case.media])
        inputs = {"pixel_values": pixels, "image_grid_thw": stack_grids(case.media)}
        got = self.runner.run(VISION_ENCODER, inputs, list(layers.values()))
        rows = sampled_rows(len(pixels))
        inner = {f"vision/{layer}": got[name][rows] for layer, name in layers.items()}
        return {**inner, "image_features": got["image_features"]}

    def positions(self, case: Case) -> np.ndarray:
        """The runtime's own positions of prompt and decode steps, [3, B, S + steps]."""
        images, videos = case.grids(IMAGE), case.grids(VIDEO)
        positions, following = rope_positions(
            case.input_ids, self.config, image_grids=images, video_grids=videos, mask=case.mask
        )
        return np.concatenate([positions, text_positions(following, case.steps)], axis=2)

    def embed(self, ids: np.ndarray, features: np.ndarray | None) -> np.ndarray:
        """Embeddings [B, S, D] of ids [B, S]."""
        if features is None:
            features = np.zeros((0, self.config.text.hidden_size), self.dtype)
        return self.runner.run(EMBEDDING, {"input_ids": ids, "image_features": features})["inputs_embeds"]

    def run(self, case: Case, features: np.ndarray | None, truth: Truth) -> Arrays:
        """Everything the reference gives, under the same names, as far as the package has it.

        `logits_columns` says which of the case's positions the logits belong to.
        """
        out: Arrays = {"positions": self.positions(case)}
        tokens = truth("tokens") if case.steps else np.zeros((len(case.mask), 0), np.int64)
        ids = np.concatenate([case.input_ids, tokens], axis=1)
        if self.has(EMBEDDING):
            out["inputs_embeds"] = self._all_embeddings(case, ids, features)
            embeds = out["inputs_embeds"]
        elif self.decoder == TEXT:
            embeds = None
        else:
            embeds = truth("inputs_embeds").astype(self.dtype)
        if not self.has(self.decoder):
            return out
        mask = np.concatenate([case.mask, np.ones_like(tokens)], axis=1)
        walk = _Walk(self, ids, embeds, mask, out["positions"])
        out.update(self._prompt(case, walk))
        if case.steps:
            found = []
            for _ in range(case.steps):
                found.append(walk.feed(1)["logits"][:, -1:])
            out["step_logits"] = np.concatenate(found, axis=1)
            out.update({f"end/{name}": value for name, value in walk.carried().items()})
        return out

    def _all_embeddings(self, case: Case, ids: np.ndarray, features: np.ndarray | None) -> np.ndarray:
        """Embeddings of prompt and decode steps, called as the runtime does: slice by slice, token by token."""
        parts, done = [], 0
        for index, length in enumerate((*case.slices, *[1] * case.steps)):
            parts.append(self.embed(ids[:, done : done + length], features if index == 0 else None))
            done += length
        return np.concatenate(parts, axis=1)

    def _prompt(self, case: Case, walk: _Walk) -> Arrays:
        if case.growing and self.recipe.logits == "last":
            grown = [walk.fresh().feed(length)["logits"][:, -1] for length in range(1, case.length)]
        else:
            grown = []
        parts: dict[str, list[np.ndarray]] = {}
        bad: dict[int, int] = {}
        columns, done = [], 0
        for length in case.slices:
            got = walk.feed(length)
            local = [p - done for p in case.positions if done <= p < done + length]
            every = got["logits"].shape[1] == length
            parts.setdefault("logits", []).append(got["logits"][:, local] if every else got["logits"])
            columns += [case.positions.index(p + done) for p in (local if every else [length - 1])]
            for layer, name in walk.layers.items():
                parts.setdefault(f"hidden/{layer}", []).append(got[name][:, local])
                real = got[name][case.mask[:, done : done + length].astype(bool)]
                bad[layer] = bad.get(layer, 0) + int((~np.isfinite(real.astype(np.float32))).sum())
            done += length
        out = {name: np.concatenate(values, axis=1) for name, values in parts.items()}
        if grown:
            out["logits"] = np.concatenate([np.stack(grown, axis=1), out["logits"]], axis=1)
            columns = list(range(case.length))
        out["logits_columns"] = np.array(columns)
        out.update({f"{NOT_FINITE}{layer}": np.array(count) for layer, count in bad.items()})
        out.update({f"prompt/{name}": value for name, value in walk.carried().items()})
        return out


def empty(spec: StateSpec, batch: int, dtype: Any) -> np.ndarray:
    """A state before the first token."""
    sizes = {BATCH: batch, PAST: 0}
    return np.zeros([sizes[n] if isinstance(n, str) else n for n in spec.past.shape], dtype)


class _Walk:
    """Feeds a decoder token by token or slice by slice, on carried states."""

    def __init__(
        self, candidate: Candidate, ids: np.ndarray, embeds: np.ndarray | None, mask: np.ndarray, positions: np.ndarray
    ) -> None:
        self._candidate = candidate
        self._ids, self._embeds, self._mask, self._positions = ids, embeds, mask, positions
        self._specs = states(
            candidate.config.text, candidate.recipe.tensor_dtype, max_length=candidate.recipe.static_length
        )
        self.layers = candidate.runner.layers(candidate.decoder)
        self._done = 0
        self._states = {spec.past.name: empty(spec, len(ids), NUMPY[spec.past.dtype]) for spec in self._specs}

    def fresh(self) -> _Walk:
        """The same prompt from its start."""
        return _Walk(self._candidate, self._ids, self._embeds, self._mask, self._positions)

    def feed(self, length: int) -> Arrays:
        """Run the next `length` tokens. Gives the graph's outputs and every layer's output."""
        part = slice(self._done, self._done + length)
        first = {"input_ids": self._ids[:, part]}
        if self._embeds is not None:
            first = {"inputs_embeds": self._embeds[:, part]}
        inputs = {
            **first,
            "attention_mask": self._mask[:, : part.stop],
            "position_ids": self._positions[:, :, part],
            **self._states,
        }
        candidate = self._candidate
        got = candidate.runner.run(candidate.decoder, inputs, list(self.layers.values()))
        self._states = {spec.past.name: got[spec.present.name] for spec in self._specs}
        self._done = part.stop
        return got

    def carried(self) -> Arrays:
        """Every state by `layer.kind`; of a static cache the part that is filled."""
        out = {}
        for spec in self._specs:
            value = self._states[spec.past.name]
            out[f"{spec.layer}.{spec.kind}"] = value[:, :, : self._done] if spec.kind in ("key", "value") else value
        return out
