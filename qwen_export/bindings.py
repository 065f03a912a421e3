"""Bindings: which checkpoint bytes each graph initializer is made of.

A graph is traced without weight data; each of its weights carries a `Binding` instead. A binding is plain data, stored
in the manifest, so that `bind` can give a graph its weights on a machine without torch, wrappers or Transformers.

The arithmetic, in order, for a binding whose parts are p0, p1, ...:

1. each part becomes a block of rows: the checkpoint tensor (seen as [rows, columns], or as [rows] when it has one
   axis), or `count` rows of a constant; optionally one of several interleaved row groups; times `scale`;
2. the blocks are concatenated along the rows;
3. `transform` is applied in float32 (`one_plus`: 1 + w, `exp`: e^w, `neg_exp`: -e^w; `identity` changes nothing);
4. with `transpose` the matrix is stored [columns, rows]: HF keeps Linear weights [out, in], MatMul wants [in, out];
5. values are cast once to `dtype` (from the checkpoint's own values, never through half) and stored as `shape`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

TRANSFORMS = ("identity", "one_plus", "exp", "neg_exp")


@dataclass(frozen=True)
class Part:
    """A block of rows of a bound weight."""

    tensor: str | None = None
    """Canonical checkpoint key; None for a constant block."""
    group: tuple[int, int, int] | None = None
    """(blocks, groups, pick): the rows are [blocks, groups, width] interleaved; take group `pick` of every block."""
    scale: float = 1.0
    fill: float = 0.0
    """Value of a constant block."""
    count: int = 0
    """Rows of a constant block."""


@dataclass(frozen=True)
class Binding:
    """How one initializer is made from checkpoint tensors. See the module docstring for the order of operations."""

    parts: tuple[Part, ...]
    dtype: str
    """Tensor dtype as stored: float32, float16 or bfloat16."""
    shape: tuple[int, ...]
    transform: str = "identity"
    transpose: bool = False

    @property
    def tensors(self) -> tuple[str, ...]:
        """Checkpoint keys read by this binding, in order."""
        return tuple(part.tensor for part in self.parts if part.tensor is not None)

    def renamed(self, old: str, new: str) -> Binding:
        """The same binding for another layer: the prefix `old` of every key replaced by `new`."""
        parts = tuple(
            replace(part, tensor=new + part.tensor.removeprefix(old))
            if part.tensor is not None and part.tensor.startswith(old)
            else part
            for part in self.parts
        )
        return replace(self, parts=parts)

    def to_dict(self) -> dict[str, Any]:
        """JSON form; fields at their default are left out."""
        out = {key: value for key, value in asdict(self).items() if value not in ("identity", False)}
        out["parts"] = [{f: v for f, v in asdict(part).items() if v != getattr(Part, f)} for part in self.parts]
        return out

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Binding:
        """Read what `to_dict` wrote."""
        parts = tuple(
            Part(**{**part, "group": tuple(part["group"]) if part.get("group") else None}) for part in data["parts"]
        )
        return Binding(**{**data, "parts": parts, "shape": tuple(data["shape"])})


Bindings = dict[str, Binding]
"""Initializer name -> binding, in the order in which the bytes are stored."""


def linear(tensor: str, out_features: int, in_features: int, dtype: str) -> Binding:
    """An unbiased Linear weight for MatMul: stored [in, out]."""
    return Binding((Part(tensor),), dtype, (in_features, out_features), transpose=True)


def vector(tensor: str, length: int, dtype: str, transform: str = "identity") -> Binding:
    """A one-axis weight: a bias, or a norm scale."""
    return Binding((Part(tensor),), dtype, (length,), transform)
