"""Time the capturable decode step: static cache, states bound in place, replayed as a CUDA graph.

python scripts/gpu/decode_graph.py DECODE.onnx [--no-capture] [--contexts 314,1705,4875]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import onnxruntime as ort
from decoder import CUDA_OPTIONS, emit, gpu_memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--no-capture", action="store_true")
    parser.add_argument("--provider", default="cuda")
    parser.add_argument("--contexts", default="314,1705,4875")
    parser.add_argument("--tokens", type=int, default=30)
    args = parser.parse_args()
    settings = ort.SessionOptions()
    settings.log_severity_level = 2
    settings.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    options = CUDA_OPTIONS | ({} if args.no_capture else {"enable_cuda_graph": "1"})
    if args.provider == "cuda":
        ort.preload_dlls()
    provider = ("CUDAExecutionProvider", options) if args.provider == "cuda" else "CPUExecutionProvider"
    start = time.perf_counter()
    session = ort.InferenceSession(args.model, settings, providers=[provider])
    emit("decode_graph_load", time.perf_counter() - start, "s", capture=not args.no_capture)
    loaded = gpu_memory()
    binding = session.io_binding()
    buffers = {}
    rng = np.random.default_rng(0)
    for spec in session.get_inputs():
        shape = [d if isinstance(d, int) else 1 for d in spec.shape]
        dtype = np.int64 if "int64" in spec.type else np.float16 if "float16" in spec.type else np.float32
        value = np.zeros(shape, dtype) if dtype is np.int64 else (rng.standard_normal(shape) * 0.1).astype(dtype)
        buffers[spec.name] = ort.OrtValue.ortvalue_from_numpy(value, args.provider, 0)
        binding.bind_ortvalue_input(spec.name, buffers[spec.name])
    for spec in session.get_outputs():
        past = spec.name.replace("present.", "past_key_values.")
        if past in buffers:  # written in place
            binding.bind_ortvalue_output(spec.name, buffers[past])
            continue
        shape = [d if isinstance(d, int) else 1 for d in spec.shape]
        buffers[spec.name] = ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float16), args.provider, 0)
        binding.bind_ortvalue_output(spec.name, buffers[spec.name])
    length = session.get_inputs()[1].shape[1]
    mask = np.zeros((1, length), np.int64)
    for context in map(int, args.contexts.split(",")):
        steps = []
        for token in range(args.tokens):
            begin = time.perf_counter()
            mask[0, : context + token + 1] = 1
            buffers["attention_mask"].update_inplace(mask)
            buffers["position_ids"].update_inplace(np.full((3, 1, 1), context + token, np.int64))
            session.run_with_iobinding(binding)
            logits = buffers["logits"].numpy()
            steps.append(time.perf_counter() - begin)
        emit(
            "decode_graph",
            1000 * float(np.median(steps[5:])),
            "ms",
            context=context,
            best=1000 * min(steps),
            capture=not args.no_capture,
            finite=bool(np.isfinite(logits.astype(np.float32)).all()),
        )
    emit("decode_graph_memory_above_weights", gpu_memory() - loaded, "GB")


if __name__ == "__main__":
    main()
