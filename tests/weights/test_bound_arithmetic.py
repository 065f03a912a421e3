"""The arithmetic of bindings, against numpy spelled out by hand, whole and block by block."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from qwen_export.bindings import Binding, Part, linear, vector
from qwen_export.errors import CheckpointError
from qwen_export.weights import evaluate
from qwen_export.weights.evaluate import TILE_COLUMNS, TILE_ROWS, as_matrix, is_finite, matrix_of, write_rows
from tests.weights.small_checkpoint import bf16

ARRAYS = {
    "linear": bf16((24, 10), 1),
    "other": bf16((6, 10), 2),
    "norm": bf16((24,), 3),
    "conv": bf16((24, 1, 4), 4),
    "half": bf16((24, 10), 5).astype(np.float16),
    "tall": bf16((TILE_ROWS + 37, TILE_COLUMNS * 2 + 5), 6),
}


def exact(key: str) -> np.ndarray:
    return ARRAYS[key].astype(np.float32)


def grouped(key: str, blocks: int, groups: int, pick: int) -> np.ndarray:
    array = exact(key)
    return array.reshape(blocks, groups, -1, *array.shape[1:])[:, pick].reshape(-1, *array.shape[1:])


CASES: dict[str, tuple[Binding, np.ndarray]] = {
    "cast": (Binding((Part("linear"),), "float16", (24, 10)), exact("linear")),
    "same dtype": (Binding((Part("linear"),), "bfloat16", (24, 10)), exact("linear")),
    "transpose": (linear("linear", 24, 10, "float16"), exact("linear").T),
    "tall transpose": (linear("tall", *ARRAYS["tall"].shape, "float16"), exact("tall").T),
    "transpose, same dtype": (linear("tall", *ARRAYS["tall"].shape, "bfloat16"), exact("tall").T),
    "half to fp32": (linear("half", 24, 10, "float32"), exact("half").T),
    "one_plus": (vector("norm", 24, "float32", "one_plus"), exact("norm") + np.float32(1)),
    "exp": (vector("norm", 24, "float32", "exp"), np.exp(exact("norm"))),
    "neg_exp": (vector("norm", 24, "float16", "neg_exp"), -np.exp(exact("norm"))),
    "conv": (Binding((Part("conv"),), "float16", (24, 1, 4)), exact("conv")),
    "group": (Binding((Part("linear", (3, 2, 1)),), "float32", (12, 10)), grouped("linear", 3, 2, 1)),
    "group of a vector": (Binding((Part("norm", (4, 3, 2)),), "float32", (8,)), grouped("norm", 4, 3, 2)),
    "scale before transform": (
        Binding((Part("norm", scale=0.25),), "float32", (24,), "one_plus"),
        exact("norm") * np.float32(0.25) + np.float32(1),
    ),
    "joined, scaled, padded, transposed": (
        Binding(
            (Part("linear", (3, 2, 0), scale=0.125), Part("other"), Part(fill=2.5, count=2), Part("linear", (3, 2, 1))),
            "float16",
            (10, 32),
            transpose=True,
        ),
        np.concatenate(
            [
                grouped("linear", 3, 2, 0) * np.float32(0.125),
                exact("other"),
                np.full((2, 10), 2.5, np.float32),
                grouped("linear", 3, 2, 1),
            ]
        ).T,
    ),
}
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("name", CASES)
def test_a_whole_weight(name: str) -> None:
    binding, wanted = CASES[name]
    found = evaluate(binding, ARRAYS.__getitem__)
    assert found.shape == binding.shape
    assert found.tobytes() == wanted.astype(DTYPES[binding.dtype]).tobytes()


@pytest.mark.parametrize("max_rows", [1, 5, 7, 1000])
@pytest.mark.parametrize("name", CASES)
def test_blocks_of_any_height_give_the_same_bytes(name: str, max_rows: int) -> None:
    binding, _ = CASES[name]
    matrix = matrix_of(name, binding, {key: ARRAYS[key].shape for key in binding.tensors})
    target = np.zeros(matrix.rows * matrix.columns, DTYPES[binding.dtype])
    rows = 0
    for block in matrix.blocks(max_rows):
        assert sum(run.count for run in block) <= max_rows
        for run in block:
            assert run.row == rows
            rows += run.count
            if run.part.tensor is None:
                values = np.full((run.count, matrix.columns), run.part.fill, np.float32)
            else:
                whole = ARRAYS[run.part.tensor].reshape(as_matrix(ARRAYS[run.part.tensor].shape))
                values = whole[run.source_row : run.source_row + run.count]
            assert write_rows(target, values, run, matrix)
    assert rows == matrix.rows
    assert target.tobytes() == evaluate(binding, ARRAYS.__getitem__).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_finiteness_is_read_from_the_bits(dtype: str) -> None:
    largest = {"float16": 65504.0, "bfloat16": 3e38, "float32": 3.4e38}[dtype]
    values = np.array([0, -0.0, largest, -largest, 1e-30], DTYPES[dtype])
    assert is_finite(values, dtype)
    for bad in (np.nan, np.inf, -np.inf):
        assert not is_finite(np.array([1, bad], DTYPES[dtype]), dtype)


def test_what_does_not_fit_is_refused_by_name() -> None:
    shapes = {key: array.shape for key, array in ARRAYS.items()}
    with pytest.raises(CheckpointError, match=r"layers\.0\.w.*24 x 10.*\[3, 3\]"):
        matrix_of("layers.0.w", Binding((Part("linear"),), "float16", (3, 3)), shapes)
    with pytest.raises(CheckpointError, match="differ in width"):
        matrix_of("w", Binding((Part("linear"), Part("conv")), "float16", (48, 10)), shapes)
    with pytest.raises(CheckpointError, match="do not split into 5 x 2"):
        matrix_of("w", Binding((Part("linear", (5, 2, 0)),), "float16", (12, 10)), shapes)
