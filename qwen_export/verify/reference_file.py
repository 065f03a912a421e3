"""What the reference gave, on disk: one `.npz` file, written and read tensor by tensor.

Nothing of it is ever whole in memory. With `--save-reference` the file is kept and travels to a machine that has
neither the checkpoint nor torch.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from types import TracebackType
from typing import Any

import ml_dtypes
import numpy as np

from qwen_export.errors import UsageError

TRUTH, PEER = "truth", "peer"
"""Transformers in float32 on the package's stored weight values, and in the package's own dtype."""
INSIDE = "inside"
"""The case name under which the inside of the layers is held; its sides are the calls of `bisect_points`."""
FORMAT = "qwen_export reference 1"
_HEADER = "header"


class ReferenceWriter:
    """Adds arrays to a reference file one by one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from None

    def __enter__(self) -> ReferenceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zip.close()

    def add(self, case: str, side: str, name: str, array: np.ndarray) -> None:
        """Store one array. bfloat16, which the format does not know, becomes float32."""
        if array.dtype == ml_dtypes.bfloat16:
            array = array.astype(np.float32)
        with self._zip.open(f"{case}/{side}/{name}.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)

    def header(self, facts: dict[str, Any]) -> None:
        """Store what the reference was made of; last, when all of it is known."""
        text = np.frombuffer(json.dumps({"format": FORMAT, **facts}).encode(), np.uint8)
        with self._zip.open(f"{_HEADER}.npy", "w") as file:
            np.lib.format.write_array(file, text, allow_pickle=False)


class Reference:
    """A reference file, read lazily.

    Raises on construction:
        UsageError: no such file, or not a reference.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._arrays = np.load(path, allow_pickle=False)
            self.facts: dict[str, Any] = json.loads(self._arrays[_HEADER].tobytes())
        except FileNotFoundError:
            raise UsageError(f"There is no reference {path}. Make one with --save-reference.") from None
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
            raise UsageError(f"{path} is no whole reference file ({error}). Make it again.") from None
        if self.facts.get("format") != FORMAT:
            raise UsageError(f"{path} is not a reference of this version. Make it again with --save-reference.")
        self._names = frozenset(self._arrays.files)

    def close(self) -> None:
        """Let the file go."""
        self._arrays.close()

    def has(self, case: str, side: str, name: str) -> bool:
        """Whether a tensor is there."""
        return f"{case}/{side}/{name}" in self._names

    def get(self, case: str, side: str, name: str) -> np.ndarray:
        """Read one tensor."""
        return self._arrays[f"{case}/{side}/{name}"]

    def names(self, case: str, side: str) -> list[str]:
        """Tensors of one side of a case, in the order they were computed."""
        prefix = f"{case}/{side}/"
        return [name.removeprefix(prefix) for name in self._arrays.files if name.startswith(prefix)]

    @property
    def has_inside(self) -> bool:
        """Whether the inside of the layers was noted too."""
        return any(name.startswith(f"{INSIDE}/") for name in self._names)

    @property
    def cases(self) -> tuple[str, ...]:
        """Cases with a truth, in order."""
        return tuple(dict.fromkeys(n.split("/")[0] for n in self._arrays.files if f"/{TRUTH}/" in n))
