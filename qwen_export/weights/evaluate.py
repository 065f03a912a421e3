"""The arithmetic of a binding, in the order that `bindings.py` gives.

`evaluate` computes a whole weight the plain way. `Matrix` cuts the same work into blocks of source rows, and
`write_rows` carries one block out: whatever the tensor's size, a block and two tiles are all that is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import ml_dtypes
import numpy as np

from qwen_export.bindings import Binding, Part
from qwen_export.contract import BFLOAT16, FLOAT16, FLOAT32
from qwen_export.errors import CheckpointError

DTYPES = {
    FLOAT32: np.dtype(np.float32),
    FLOAT16: np.dtype(np.float16),
    BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    "float64": np.dtype(np.float64),
}
"""Tensor dtype -> numpy dtype."""

# A tile is copied out of the block, turned inside the second-level cache, cast, and written in runs of TILE_ROWS.
# Rows of the copy are padded so that its columns do not all fall into the same cache set.
TILE_ROWS, TILE_COLUMNS, TILE_PADDING = 512, 128, 2
FLAT_CHUNK = 1 << 17
"""Elements cast at a time where nothing is transposed; small enough to stay in cache."""

_EXPONENT_MASKS = {FLOAT16: (np.uint16, 0x7C00), BFLOAT16: (np.uint16, 0x7F80), FLOAT32: (np.uint32, 0x7F800000)}


@dataclass(frozen=True)
class Run:
    """Consecutive rows of a part that are consecutive rows of the bound matrix too."""

    part: Part
    source_row: int
    """First row in the checkpoint tensor; meaningless for a constant part."""
    row: int
    """First row in the bound matrix, before any transposition."""
    count: int


@dataclass(frozen=True)
class Matrix:
    """A binding seen as the matrix [rows, columns] that its parts stack up to, before transposition."""

    binding: Binding
    rows: int
    columns: int
    runs: tuple[Run, ...]

    def blocks(self, max_rows: int) -> Iterator[list[Run]]:
        """The runs in order, cut into blocks of at most `max_rows` rows."""
        block: list[Run] = []
        room = max_rows
        for run in self.runs:
            done = 0
            while done < run.count:
                take = min(room, run.count - done)
                block.append(Run(run.part, run.source_row + done, run.row + done, take))
                done, room = done + take, room - take
                if room == 0:
                    yield block
                    block, room = [], max_rows
        if block:
            yield block


def as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """A tensor's shape seen as [rows, columns]; one axis gives one column."""
    return (shape[0], prod(shape[1:])) if shape else (1, 1)


def matrix_of(name: str, binding: Binding, shapes: dict[str, tuple[int, ...]]) -> Matrix:
    """Lay a binding's parts out as rows of one matrix.

    Args:
        name: the initializer, for messages.
        shapes: shape of every checkpoint tensor the binding reads.
    """
    columns = {as_matrix(shapes[key])[1] for key in binding.tensors} or {prod(binding.shape[1:])}
    if len(columns) > 1:
        raise CheckpointError(f"{name}: its tensors {', '.join(binding.tensors)} differ in width and cannot be joined.")
    runs: list[Run] = []
    row = 0
    for part in binding.parts:
        for source_row, count in _source_runs(name, part, shapes):
            runs.append(Run(part, source_row, row, count))
            row += count
    matrix = Matrix(binding, row, columns.pop(), tuple(runs))
    if matrix.rows * matrix.columns != prod(binding.shape):
        raise CheckpointError(
            f"{name}: the checkpoint gives {matrix.rows} x {matrix.columns} numbers from "
            f"{', '.join(binding.tensors) or 'constants'}, but the graph expects the shape {list(binding.shape)}."
        )
    return matrix


def _source_runs(name: str, part: Part, shapes: dict[str, tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    if part.tensor is None:
        yield 0, part.count
        return
    rows = as_matrix(shapes[part.tensor])[0]
    if part.group is None:
        yield 0, rows
        return
    blocks, groups, pick = part.group
    width, rest = divmod(rows, blocks * groups)
    if rest:
        raise CheckpointError(f"{name}: the {rows} rows of {part.tensor} do not split into {blocks} x {groups} groups.")
    for block in range(blocks):
        yield (block * groups + pick) * width, width


def convert(values: np.ndarray, part: Part, binding: Binding) -> np.ndarray:
    """Scale, transform and cast; the shape stays. Anything but a plain cast is computed in float32."""
    if part.scale != 1.0 or binding.transform != "identity":
        values = values.astype(np.float32)
        if part.scale != 1.0:
            values *= np.float32(part.scale)
        if binding.transform == "one_plus":
            values += np.float32(1)
        elif binding.transform in ("exp", "neg_exp"):
            np.exp(values, out=values)
            if binding.transform == "neg_exp":
                np.negative(values, out=values)
    return values.astype(DTYPES[binding.dtype], copy=False)


def is_finite(values: np.ndarray, dtype: str) -> bool:
    """Whether no value is NaN or infinite, read from the exponent bits (numpy's isfinite is slow on half types)."""
    bits, mask = _EXPONENT_MASKS[dtype]
    return values.size == 0 or int((values.view(bits) & bits(mask)).max()) != mask


def evaluate(binding: Binding, read: Callable[[str], np.ndarray]) -> np.ndarray:
    """A whole bound weight, computed the plain way. For small tensors and for checks."""
    shapes = {key: tuple(read(key).shape) for key in binding.tensors}
    matrix = matrix_of("weight", binding, shapes)
    blocks = []
    for run in matrix.runs:
        if run.part.tensor is None:
            values = np.full((run.count, matrix.columns), run.part.fill, np.float32)
        else:
            values = read(run.part.tensor).reshape(as_matrix(shapes[run.part.tensor]))
            values = values[run.source_row : run.source_row + run.count]
        blocks.append(convert(values, run.part, binding))
    joined = np.concatenate(blocks)
    return np.ascontiguousarray(joined.T if binding.transpose else joined).reshape(binding.shape)


def write_rows(target: np.ndarray, values: np.ndarray, run: Run, matrix: Matrix) -> bool:
    """Convert one run's rows and put them into the weight's bytes.

    Args:
        target: all elements of the weight, flat, in the binding's dtype; usually a mapped file.
        values: [run.count, columns] in the checkpoint's dtype.

    Returns:
        Whether every stored value is finite.
    """
    if matrix.binding.transpose and matrix.columns > 1 and matrix.rows > 1:
        return _write_transposed(target.reshape(matrix.columns, matrix.rows), values, run, matrix.binding)
    start = run.row * matrix.columns
    flat, finite = values.reshape(-1), True
    for at in range(0, flat.size, FLAT_CHUNK):
        stored = convert(flat[at : at + FLAT_CHUNK], run.part, matrix.binding)
        finite &= is_finite(stored, matrix.binding.dtype)
        target[start + at : start + at + stored.size] = stored
    return finite


def _write_transposed(target: np.ndarray, values: np.ndarray, run: Run, binding: Binding) -> bool:
    padded = np.empty((TILE_ROWS, TILE_COLUMNS + TILE_PADDING), values.dtype)
    turned = np.empty((TILE_COLUMNS, TILE_ROWS), values.dtype)
    rows, columns = values.shape
    finite = True
    for row in range(0, rows, TILE_ROWS):
        height = min(TILE_ROWS, rows - row)
        for column in range(0, columns, TILE_COLUMNS):
            width = min(TILE_COLUMNS, columns - column)
            tile = padded[:height, :width]
            tile[...] = values[row : row + height, column : column + width]
            turned[:width, :height] = tile.T
            stored = convert(turned[:width, :height], run.part, binding)
            finite &= is_finite(stored, binding.dtype)
            target[column : column + width, run.row + row : run.row + row + height] = stored
    return finite
