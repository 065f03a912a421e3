"""One copy of the decoder's weights on the device, for the decoder graph and the single-token graph alike.

ONNX Runtime loads external data once for every session; two sessions of a 27B decoder would take 104 GB. Weights handed
to both as initializers of the caller's own are used where they lie. ONNX Runtime accepts only buffers it does not own,
so each value is passed on through DLPack: an alias, kept beside its origin (tried on 1.31.1 and 1.32).
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np

from qwen_export.contract import FLOAT16, FLOAT32
from qwen_export.runtime.session import Device, import_onnxruntime
from qwen_export.runtime.state import NUMPY_TYPES, to_device

_DTYPES = {1: FLOAT32, 10: FLOAT16}
"""ONNX element type -> tensor dtype, for weights that DLPack can carry; bf16 weights are not shared."""


def load_weights(graph: Path, device: Device) -> dict[str, Any] | None:
    """Every external initializer of a graph on the device, by name; None where one cannot be shared.

    Args: graph: a graph file beside its external data.
    """
    import onnx

    runtime = import_onnxruntime()
    model = onnx.load(str(graph), load_external_data=False)
    external = [t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    if any(tensor.data_type not in _DTYPES for tensor in external):
        return None
    weights: dict[str, Any] = {}
    files: dict[str, np.ndarray] = {}
    for tensor in external:
        place = {entry.key: entry.value for entry in tensor.external_data}
        name = place["location"]
        if name not in files:
            with (graph.parent / name).open("rb") as file:
                files[name] = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        dtype, start = _DTYPES[tensor.data_type], int(place["offset"])
        bytes_ = files[name][start : start + int(place["length"])]
        value = to_device(bytes_.view(NUMPY_TYPES[dtype]).reshape(tuple(tensor.dims)), dtype, device)
        alias = runtime.OrtValue.from_dlpack(value)
        alias.origin = value  # on the CPU the bytes belong to a numpy array that only the origin keeps alive
        weights[tensor.name] = alias
    return weights
