"""Checkpoint tensors for the reference, one at a time: rounded as the package stores them, or in its dtype.

accelerate asks for a tensor when a layer is about to run and drops it afterwards, so the model need not fit in memory.
What fits is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from qwen_export.bindings import Bindings
from qwen_export.checkpoint import Snapshot
from qwen_export.contract import FLOAT32
from qwen_export.errors import CheckpointError
from qwen_export.runtime.memory import free_memory
from qwen_export.runtime.session import Device

KEPT_SHARE = 0.3
"""Share of the free memory that the weights of one model may take; two of them and the package are in memory."""


class ReferenceWeights(Mapping[str, torch.Tensor]):
    """Parameter name -> value, as accelerate's `state_dict` wants it."""

    def __init__(
        self, snapshot: Snapshot, dtype: torch.dtype, rounded: Mapping[str, str], budget: int | None = None
    ) -> None:
        """Args:
        dtype: of every tensor given.
        rounded: canonical key -> the tensor dtype to round through first.
        budget: bytes of converted tensors to keep in host memory; by default a share of what is free.
        """
        self._snapshot, self._dtype, self._rounded = snapshot, dtype, rounded
        self._keys: dict[str, str] = {}
        self._kept: dict[str, torch.Tensor] = {}
        self._limit = budget
        self._room = self.budget(torch.device("cpu"))

    def budget(self, device: torch.device) -> int:
        """Bytes of weights that may lie on a device."""
        if self._limit is not None:
            return self._limit
        free = free_memory(Device("cuda" if device.type == "cuda" else "cpu"))
        return int((free or 0) * KEPT_SHARE)

    def named(self, parameters: set[str], is_text: bool) -> ReferenceWeights:
        """Say which parameters the model has; a text-only model calls them `model.*` for `model.language_model.*`."""
        for name in sorted(parameters):
            key = name.replace("model.", "model.language_model.", 1) if is_text else name
            if key not in self._snapshot.tensors:
                raise CheckpointError(f"{self._snapshot.source} lists no tensor {key}, which Transformers needs.")
            self._keys[name] = key
        return self

    def __getitem__(self, name: str) -> torch.Tensor:
        if name in self._kept:
            return self._kept[name]
        key = self._keys[name]
        array = self._snapshot.array(key)
        if self._snapshot.tensors[key].dtype == "bfloat16":  # torch does not know numpy's: it travels as its bits
            value = torch.from_numpy(array.view("uint16").copy()).view(torch.bfloat16)
        else:
            value = torch.from_numpy(array.copy())
        if key in self._rounded:
            value = value.to(getattr(torch, self._rounded[key]))
        value = value.to(self._dtype)
        size = value.numel() * value.element_size()
        if size <= self._room:
            self._room -= size
            self._kept[name] = value
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def stored_rounding(bindings: Mapping[str, Bindings]) -> dict[str, str]:
    """Which checkpoint tensors the package stores in half, and in which half: canonical key -> tensor dtype.

    Those that it stores in float32 anywhere are not rounded. Args: bindings: component -> its bindings.
    """
    wide: set[str] = set()
    half: dict[str, str] = {}
    for component in bindings.values():
        for binding in component.values():
            for key in binding.tensors:
                if binding.dtype == FLOAT32:
                    wide.add(key)
                else:
                    half[key] = binding.dtype
    return {key: dtype for key, dtype in half.items() if key not in wide}
