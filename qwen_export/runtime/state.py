"""The carried state of a conversation: what each layer remembers, on the device that computes.

A decoder has four kinds of state: KV key and value of the full-attention layers, conv_state and recurrent_state of the
linear ones. A `State` holds them as ONNX Runtime values, with the attention mask so far and each row's next position.
The engine makes a new State at each step and leaves the old one as it was, so a kept State can be continued twice. The
exception is a package with a static KV cache: all its states are written in place, so copy such a State before
continuing it twice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from qwen_export.contract import BATCH, BFLOAT16, FLOAT16, FLOAT32, INT64, PAST, StateSpec
from qwen_export.errors import InputError, PackageError
from qwen_export.runtime.session import Device, import_onnxruntime

ELEMENT_TYPES = {FLOAT32: 1, INT64: 7, FLOAT16: 10, BFLOAT16: 16}
"""Tensor dtype -> ONNX element type."""
NUMPY_TYPES: dict[str, Any] = {FLOAT32: np.float32, INT64: np.int64, FLOAT16: np.float16, BFLOAT16: np.uint16}
"""Tensor dtype -> numpy dtype that holds its bytes; numpy has no bfloat16, so its bits travel as uint16."""


@dataclass(frozen=True)
class State:
    """States of B rows after P tokens each (padding included)."""

    values: dict[str, Any]
    """Name of the graph's input -> OrtValue."""
    mask: np.ndarray
    """int64 [B, P]; 0 for left padding."""
    next_position: np.ndarray
    """int64 [B]: the M-RoPE position of the next token."""
    specs: tuple[StateSpec, ...]
    device: Device
    owner: Any = None
    """What must live as long as the values: the session whose allocator made them, or the lease on fixed buffers."""

    @property
    def batch(self) -> int:
        return self.mask.shape[0]

    @property
    def length(self) -> int:
        """P, tokens seen."""
        return self.mask.shape[1]

    @property
    def num_bytes(self) -> int:
        """Bytes of all values."""
        return sum(value.tensor_size_in_bytes() for value in self.values.values())

    @property
    def is_static(self) -> bool:
        """Whether KV buffers have a fixed length and are written in place."""
        return all(PAST not in spec.past.shape for spec in self.specs)

    def copy(self) -> State:
        """An independent copy. Only states written in place need new memory: all others are never written to."""
        if not self.is_static:
            return replace(self, mask=self.mask.copy(), next_position=self.next_position.copy())
        arrays = self.to_host()
        values = {s.past.name: to_device(arrays[s.past.name], s.past.dtype, self.device) for s in self.specs}
        return replace(self, values=values, mask=self.mask.copy(), next_position=self.next_position.copy(), owner=None)

    def to_host(self) -> dict[str, np.ndarray]:
        """Every value as a numpy array under its input name; bfloat16 as its bits in uint16."""
        return {spec.past.name: to_numpy(self.values[spec.past.name], spec.past.dtype) for spec in self.specs}

    def save(self, path: Path) -> None:
        """Write one `.npz` file: every value, the mask, the next positions, and the dtypes by name."""
        dtypes = {spec.past.name: spec.past.dtype for spec in self.specs}
        arrays = {
            **self.to_host(),
            "attention_mask": self.mask,
            "next_position": self.next_position,
            "dtypes": np.array(json.dumps(dtypes)),
        }
        with path.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]


def empty_state(specs: Sequence[StateSpec], batch: int, device: Device) -> State:
    """States of `batch` rows that have seen nothing: KV of length 0 (static: zeros), conv and recurrent zero."""
    values = {}
    for spec in specs:
        shape = [{BATCH: batch, PAST: 0}[axis] if isinstance(axis, str) else axis for axis in spec.past.shape]
        zeros = np.zeros(shape, NUMPY_TYPES[spec.past.dtype])
        values[spec.past.name] = to_device(zeros, spec.past.dtype, device)
    mask = np.zeros((batch, 0), np.int64)
    return State(values, mask, np.zeros(batch, np.int64), tuple(specs), device)


def load_state(path: Path, specs: Sequence[StateSpec], device: Device) -> State:
    """Read what `State.save` wrote, for a decoder with these states.

    Raises:
        InputError: no such file, or not a saved state.
        PackageError: the state is that of another model or dtype.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        dtypes = json.loads(str(arrays["dtypes"]))
        mask, next_position = arrays["attention_mask"], arrays["next_position"]
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such saved state.") from None
    except Exception as error:  # a damaged zip, array header or JSON each raise their own kind
        raise InputError(f"{path}: not a saved state, or damaged ({error}).") from None
    values = {}
    for spec in specs:
        name, wanted = spec.past.name, spec.past
        if name not in arrays or dtypes.get(name) != wanted.dtype or not _fits(arrays[name].shape, wanted.shape):
            found = f"{dtypes.get(name)} {list(arrays[name].shape)}" if name in arrays else "nothing"
            raise PackageError(
                f"{path}: the state is of another model: {name} should be {wanted.dtype} {list(wanted.shape)}, "
                f"found {found}. Use the package it was saved with."
            )
        values[name] = to_device(arrays[name], wanted.dtype, device)
    return State(values, mask, next_position, tuple(specs), device)


def to_device(array: np.ndarray, dtype: str, device: Device) -> Any:
    """An OrtValue of this dtype holding a copy of the array on the device."""
    runtime = import_onnxruntime()
    host = runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(np.array(array, order="C"), ELEMENT_TYPES[dtype])
    if device.provider == "cpu":
        return host
    if array.size == 0 or dtype == BFLOAT16:
        value = runtime.OrtValue.ortvalue_from_shape_and_type(
            list(array.shape), ELEMENT_TYPES[dtype], device.provider, device.index
        )
        if array.size:
            value.update_inplace(host)
        return value
    return runtime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), device.provider, device.index)


def to_numpy(value: Any, dtype: str) -> np.ndarray:
    """A copy of an OrtValue on the host; bfloat16 as uint16 bits."""
    runtime = import_onnxruntime()
    if dtype != BFLOAT16:
        return np.array(value.numpy())
    out = np.empty(value.shape(), np.uint16)
    if out.size:
        runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(out, ELEMENT_TYPES[dtype]).update_inplace(value)
    return out


def _fits(shape: tuple[int, ...], wanted: tuple[int | str, ...]) -> bool:
    return len(shape) == len(wanted) and all(isinstance(b, str) or a == b for a, b in zip(shape, wanted, strict=True))
