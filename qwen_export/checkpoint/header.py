"""Read the header of a safetensors file and hold it against the file's size. No tensor data is touched.

The safetensors library hands out tensors but not where they lie; streaming needs the byte ranges.
Format: 8 bytes little-endian header length, a JSON header, then the tensors one after the other without a gap.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from qwen_export.errors import CheckpointError

_DTYPES = {
    "F64": ("float64", 64),
    "F32": ("float32", 32),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F4": ("float4_e2m1fn", 4),
    "I64": ("int64", 64),
    "I32": ("int32", 32),
    "I16": ("int16", 16),
    "I8": ("int8", 8),
    "U64": ("uint64", 64),
    "U32": ("uint32", 32),
    "U16": ("uint16", 16),
    "U8": ("uint8", 8),
    "BOOL": ("bool", 8),
}
"""safetensors dtype -> tensor dtype, bits."""
_MAX_HEADER_BYTES = 100_000_000
"""The safetensors library refuses longer ones too."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor as its file describes it."""

    raw_key: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    """Byte range in the file."""


def read_header(file: Path) -> list[StoredTensor]:
    """All tensors of a file in the order of their bytes. A damaged or shortened file is an error that names it."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
            text = stream.read(length) if length <= min(size - 8, _MAX_HEADER_BYTES) else b""
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}.") from None
    if size == 0:
        raise CheckpointError(f"{file} is empty (0 bytes). Download it again.")
    if head.startswith(b"version "):
        raise CheckpointError(f"{file} is a Git LFS pointer, not the file itself. Fetch it with `git lfs pull`.")
    if not text or len(text) != length:
        raise CheckpointError(
            f"{file} is no whole safetensors file: it has {size} bytes, which cannot hold its own header. "
            "Download it again."
        )
    try:
        entries = json.loads(text, object_pairs_hook=_unique)
        entries.pop("__metadata__", None)
        tensors = [_tensor(key, entry, 8 + length) for key, entry in entries.items()]
    except (ValueError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file} has a damaged safetensors header ({error}). Download it again.") from None
    tensors.sort(key=lambda tensor: (tensor.start, tensor.stop))
    _check_extent(file, tensors, 8 + length, size)
    return tensors


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a name occurs twice")
    return out


def _tensor(key: str, entry: dict[str, Any], base: int) -> StoredTensor:
    dtype, bits = _DTYPES[entry["dtype"]]
    shape = tuple(int(n) for n in entry["shape"])
    start, stop = (int(n) for n in entry["data_offsets"])
    if min(shape, default=0) < 0 or (stop - start) * 8 != prod(shape) * bits:
        raise ValueError(f"{key}: {stop - start} bytes do not fit shape {list(shape)} of {entry['dtype']}")
    return StoredTensor(key, dtype, shape, base + start, base + stop)


def _check_extent(file: Path, tensors: list[StoredTensor], base: int, size: int) -> None:
    end = base
    for tensor in tensors:
        if tensor.start != end:
            raise CheckpointError(
                f"{file} has a damaged safetensors header ({tensor.raw_key} starts at byte {tensor.start}, "
                f"expected {end}). Download it again."
            )
        end = tensor.stop
    if size < end:
        broken = next(tensor for tensor in tensors if tensor.stop > size)
        raise CheckpointError(
            f"{file} is truncated: it has {size} bytes of {end}; the first tensor cut off is {broken.raw_key}. "
            "Download it again."
        )
    if size > end:
        raise CheckpointError(f"{file} has {size - end} bytes after its last tensor. Download it again.")
