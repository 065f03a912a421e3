"""Give a graph random weights that share bytes, so that a 27B graph can be timed without 55 GB on disk.

Every bound half-precision initializer points at the start of one random file; memory traffic stays honest because ONNX
Runtime copies each of them to its own place on the device. Float32 weights (norm scales, gate constants) are few: they
get values of their own that keep activations finite.

    python scripts/gpu/shared_weights.py link GRAPH.onnx OUT.onnx     here: rewrite the external references
    python scripts/gpu/shared_weights.py fill FOLDER GRAPH.onnx       there: write half.bin and float32.bin beside it
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx

HALF, SINGLE = "half.bin", "float32.bin"
_HALF_TYPES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def link(source: Path, target: Path) -> None:
    """Point every external initializer of a graph-only export at the two files."""
    model = onnx.load(str(source), load_external_data=False)
    offset = 0
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        half = tensor.data_type in _HALF_TYPES
        length = int(np.prod(tensor.dims)) * (2 if half else 4)
        del tensor.external_data[:]
        place = {"location": HALF if half else SINGLE, "offset": "0" if half else str(offset), "length": str(length)}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=value)
        offset += 0 if half else length
    onnx.save(model, str(target))


def fill(folder: Path, graphs: list[Path]) -> None:
    """Write the two files: half.bin as long as the largest weight, float32.bin with one value range per kind."""
    largest, singles = 0, b""
    dtype = np.float16
    for graph in graphs:
        model = onnx.load(str(graph), load_external_data=False)
        for tensor in model.graph.initializer:
            if tensor.data_location != onnx.TensorProto.EXTERNAL:
                continue
            place = {entry.key: entry.value for entry in tensor.external_data}
            if place["location"] == HALF:
                largest = max(largest, int(place["length"]))
            elif int(place["offset"]) >= len(singles):
                singles += _single(tensor.name, int(np.prod(tensor.dims))).tobytes()
    rng = np.random.default_rng(0)
    pool = (rng.standard_normal(1 << 24, dtype=np.float32) * 0.015).astype(dtype)
    with (folder / HALF).open("wb") as file:
        while file.tell() < largest:
            file.write(np.roll(pool, int(rng.integers(pool.size))).tobytes())
    (folder / SINGLE).write_bytes(singles)


def _single(name: str, size: int) -> np.ndarray:
    noise = np.random.default_rng(size).standard_normal(size, dtype=np.float32)
    if name.endswith("gate_scale"):
        return -np.exp(noise * 0.3)
    if name.endswith("gate_bias"):
        return noise - 3
    return 1 + 0.1 * noise


if __name__ == "__main__":
    if sys.argv[1] == "link":
        link(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        fill(Path(sys.argv[2]), [Path(p) for p in sys.argv[3:]])
