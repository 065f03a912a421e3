"""Time the vision encoder on ONNX Runtime, and its memory above the weights.

python scripts/gpu/vision.py MODEL.onnx [--patches 1064,6580,19200] [--mix] [--kernels]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import onnxruntime as ort
from decoder import CUDA_OPTIONS, emit, gpu_memory, kernels
from hf import grid_of


def run(session: ort.InferenceSession, grids: list[tuple[int, int, int]], pixels: np.ndarray) -> float:
    """Seconds for one call, features left on the device."""
    binding = session.io_binding()
    binding.bind_ortvalue_input("pixel_values", ort.OrtValue.ortvalue_from_numpy(pixels, "cuda", 0))
    binding.bind_cpu_input("image_grid_thw", np.array(grids, np.int64))
    binding.bind_output("image_features", "cuda", 0)
    start = time.perf_counter()
    session.run_with_iobinding(binding)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--patches", default="1064,6580,19200")
    parser.add_argument("--mix", action="store_true", help="also 1 x 19,200 with 31 x 64, in the runtime's groups")
    parser.add_argument("--kernels", action="store_true", help="the GPU kernels of one call at the largest size")
    parser.add_argument("--tag", default="")
    args = parser.parse_args()
    ort.preload_dlls()
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    settings.enable_mem_pattern = False
    settings.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    session = ort.InferenceSession(args.model, settings, providers=[("CUDAExecutionProvider", CUDA_OPTIONS)])
    loaded = gpu_memory()
    rng = np.random.default_rng(0)
    width = session.get_inputs()[0].shape[1]
    single = {}
    for count in [int(x) for x in args.patches.split(",")] + ([64] if args.mix else []):
        height, breadth = grid_of(count)
        pixels = rng.standard_normal((count, width), dtype=np.float32)
        times = [run(session, [(1, height, breadth)], pixels) for _ in range(5)]
        single[count] = min(times[1:])
        above = gpu_memory() - loaded
        emit("vision", single[count], "s", patches=count, first=times[0], above_weights_gb=above, tag=args.tag)
        if args.kernels and count == max(single):
            kernels("vision", lambda grid=(1, height, breadth), x=pixels: run(session, [grid], x))
    if args.mix:
        large = rng.standard_normal((19200, width), dtype=np.float32)
        small = rng.standard_normal((31 * 64, width), dtype=np.float32)
        groups = [([(1, *grid_of(19200))], large), ([(1, 8, 8)] * 31, small)]
        times = [sum(run(session, grids, pixels) for grids, pixels in groups) for _ in range(4)]
        emit("vision_mix", min(times[1:]), "s", single_runs=single[19200] + 31 * single[64])


if __name__ == "__main__":
    main()
