"""Where each bound weight lies in its external data file.

Weights follow one another in the order of the bindings. A weight of 1 MiB or more starts on a page boundary (4,096
bytes), so that runtimes can map it; a smaller one starts at a multiple of 64 bytes. Nothing else is in the file: the
gaps before aligned starts are zero, and the file ends with the last weight. Two graphs may share one file, the second
reading a subset of the first one's weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from qwen_export.bindings import Binding, Bindings
from qwen_export.contract import BFLOAT16, FLOAT16, FLOAT32

ITEM_BYTES = {FLOAT32: 4, FLOAT16: 2, BFLOAT16: 2}
PAGE = 4096
SMALL_ALIGNMENT = 64
PAGE_ALIGNED_FROM = 1 << 20
"""Bytes from which a weight starts on a page boundary."""


@dataclass(frozen=True)
class Slot:
    """A weight's place in the data file, in bytes."""

    offset: int
    num_bytes: int

    @property
    def end(self) -> int:
        """First byte after the weight."""
        return self.offset + self.num_bytes


@dataclass(frozen=True)
class Layout:
    """A whole data file: initializer name -> slot, and the file's size in bytes."""

    slots: dict[str, Slot]
    size: int


def stored_bytes(binding: Binding) -> int:
    """Bytes a bound weight takes in the data file."""
    return prod(binding.shape) * ITEM_BYTES[binding.dtype]


def aligned(position: int, num_bytes: int) -> int:
    """First allowed start at or after `position` for a weight of `num_bytes`."""
    step = PAGE if num_bytes >= PAGE_ALIGNED_FROM else SMALL_ALIGNMENT
    return -(-position // step) * step


def plan_layout(bindings: Bindings) -> Layout:
    """Lay out a data file for these bindings, in their order."""
    slots: dict[str, Slot] = {}
    position = 0
    for name, binding in bindings.items():
        num_bytes = stored_bytes(binding)
        slots[name] = Slot(aligned(position, num_bytes), num_bytes)
        position = slots[name].end
    return Layout(slots, position)
