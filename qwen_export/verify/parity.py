"""How far from the truth: errors of each tensor, pooled over cases, and the verdict by the recipe's tolerances."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from qwen_export.contract import DECODER, EMBEDDING, VISION_ENCODER
from qwen_export.recipe import Tolerances
from qwen_export.verify.cases import Case

INNER = ("vision", "hidden")
"""Kinds that lie between layers: no output of a graph."""
STATES = ("conv_state", "recurrent_state", "key", "value")
ORDER = ("vision", "image_features", "inputs_embeds", *STATES, "hidden", "logits")
"""Kinds in the order in which a graph computes them within a layer."""
COMPONENT_OF = {"vision": VISION_ENCODER, "image_features": VISION_ENCODER, "inputs_embeds": EMBEDDING}
WORDS = {
    "vision": "vision block output",
    "image_features": "image features",
    "inputs_embeds": "embeddings",
    "conv_state": "conv state",
    "recurrent_state": "recurrent state",
    "key": "key",
    "value": "value",
    "hidden": "layer output",
    "logits": "logits",
}


@dataclass(frozen=True)
class Tensor:
    """What is compared: a kind of tensor, of one layer where it has layers."""

    kind: str
    layer: int | None = None

    def __str__(self) -> str:
        where = "" if self.layer is None else f" of {'block' if self.kind == 'vision' else 'layer'} {self.layer}"
        return f"{WORDS[self.kind]}{where}"

    @property
    def component(self) -> str:
        """The graph that computes it."""
        return COMPONENT_OF.get(self.kind, DECODER)

    @property
    def rank(self) -> tuple[int, int, int]:
        """Order of computation."""
        stage = {VISION_ENCODER: 0, EMBEDDING: 1, DECODER: 2}[self.component]
        layer = math.inf if self.kind in ("logits", "image_features") else (self.layer or 0)
        return stage, layer, ORDER.index(self.kind)  # type: ignore[return-value]


@dataclass
class Errors:
    """Sums over the numbers of a tensor, of one case or of many."""

    count: int = 0
    ours: float = 0.0
    """Sum of squared differences between the package and the truth."""
    peer: float = 0.0
    """The same for Transformers in the package's dtype."""
    truth: float = 0.0
    """Sum of squares of the truth."""
    max_abs: float = 0.0
    peer_max_abs: float = 0.0
    outside: int = 0
    """Numbers outside rtol and atol of the peer: the plain comparison that everybody makes."""
    not_finite: int = 0
    peer_not_finite: int = 0

    def add(self, other: Errors) -> None:
        """Pool another set of numbers into this one."""
        for name in ("count", "ours", "peer", "truth", "outside", "not_finite", "peer_not_finite"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.max_abs = max(self.max_abs, other.max_abs)
        self.peer_max_abs = max(self.peer_max_abs, other.peer_max_abs)

    @property
    def relative_rms(self) -> float:
        """RMS error over the truth's RMS."""
        return _ratio(self.ours, self.truth)

    @property
    def peer_relative_rms(self) -> float:
        return _ratio(self.peer, self.truth)

    @property
    def ratio(self) -> float:
        """RMS error of ours over that of the peer; 1 where both are exact."""
        return _ratio(self.ours, self.peer)

    @property
    def outside_share(self) -> float:
        return self.outside / self.count if self.count else 0.0


def _ratio(above: float, below: float) -> float:
    if below == 0:
        return 1.0 if above == 0 else math.inf
    return math.sqrt(above / below)


def pooled(errors: Iterable[Errors]) -> Errors:
    """All of them as one."""
    total = Errors()
    for one in errors:
        total.add(one)
    return total


def measure(ours: np.ndarray, truth: np.ndarray, peer: np.ndarray, limits: Tolerances) -> Errors:
    """Compare arrays of one shape. Numbers that are not finite are counted and left out of the sums."""
    a, t, p = (np.asarray(x, dtype=np.float64).reshape(-1) for x in (ours, truth, peer))
    good, peer_good = np.isfinite(a), np.isfinite(p)
    both = good & peer_good & np.isfinite(t)
    out = Errors(count=a.size, not_finite=int((~good).sum()), peer_not_finite=int((~peer_good).sum()))
    a, t, p = a[both], t[both], p[both]
    mine, theirs = np.abs(a - t), np.abs(p - t)
    out.ours, out.peer = float(mine @ mine), float(theirs @ theirs)
    out.truth = float(t @ t)
    out.max_abs, out.peer_max_abs = float(mine.max(initial=0)), float(theirs.max(initial=0))
    out.outside = int((np.abs(a - p) > limits.atol + limits.rtol * np.abs(p)).sum()) + int((~both).sum())
    return out


@dataclass
class Ledger:
    """Errors of every tensor in every case."""

    limits: Tolerances
    entries: dict[tuple[Tensor, str], Errors] = field(default_factory=dict)
    wrong_positions: list[str] = field(default_factory=list)
    """Cases in which the runtime's M-RoPE positions are not Transformers'."""

    def note(self, case: Case, name: str, ours: np.ndarray, truth: np.ndarray, peer: np.ndarray) -> None:
        """Compare one tensor of a case under its name in the reference, where rows are not padding.

        Raises:
            ValueError: the shapes differ.
        """
        if not ours.shape == truth.shape == peer.shape:
            raise ValueError(f"{name} of {case.name} has shape {ours.shape}, the reference {truth.shape}")
        stage, _, rest = name.partition("/")
        if stage in ("prompt", "end"):
            layer, kind = rest.split(".")
            if kind in ("key", "value") and stage == "prompt" and case.steps:
                return  # the beginning of the one at the end
            tensor = Tensor(kind, int(layer))
        else:
            tensor = Tensor({"step_logits": "logits"}.get(stage, stage), int(rest) if rest else None)
        keep = _unmasked(case, name, tensor.kind)
        ours, truth, peer = (keep(x) for x in (ours, truth, peer))
        entry = self.entries.setdefault((tensor, case.name), Errors())
        entry.add(measure(ours, truth, peer, self.limits))

    def note_not_finite(self, case: Case, layer: int, count: int) -> None:
        """Count NaN and infinity in a whole layer output; at the sampled positions they may be missed."""
        entry = self.entries.setdefault((Tensor("hidden", layer), case.name), Errors())
        entry.not_finite = max(entry.not_finite, count)

    def tensors(self) -> list[Tensor]:
        """Every tensor compared, in the order of computation."""
        return sorted({tensor for tensor, _ in self.entries}, key=lambda t: t.rank)

    def of(self, tensor: Tensor) -> list[Errors]:
        """A tensor's errors, case by case."""
        return [errors for (key, _), errors in self.entries.items() if key == tensor]

    def of_kind(self, kind: str) -> list[tuple[str, Errors]]:
        """A kind's errors with their cases, all layers."""
        return [(case, errors) for (tensor, case), errors in self.entries.items() if tensor.kind == kind]


def _unmasked(case: Case, name: str, kind: str) -> Callable[[np.ndarray], np.ndarray]:
    """Takes the numbers that the contract specifies: nothing at padding, but all of conv and recurrent state."""
    if kind in ("vision", "image_features", "conv_state", "recurrent_state") or name == "step_logits":
        return lambda x: x
    mask = case.mask.astype(bool)
    if kind in ("key", "value"):
        return lambda x: x.swapaxes(1, 2)[_extended(mask, x.shape[2])]
    if kind == "inputs_embeds":
        return lambda x: x[_extended(mask, x.shape[1])]
    return lambda x: x[mask[:, list(case.positions)]]


def _extended(mask: np.ndarray, length: int) -> np.ndarray:
    return np.pad(mask, ((0, 0), (0, length - mask.shape[1])), constant_values=True)
