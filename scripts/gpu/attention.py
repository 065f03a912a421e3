"""Time ONNX's Attention alone at the vision tower's shape, the ways it can be written, beside PyTorch's.

python scripts/gpu/attention.py [--patches 6580,19200] [--heads 16] [--width 72]

`nonpad` gives the lengths as an input, `plain` does not; `wide` pads each head with zeros to 96. Kernel names come from
one profiled call each.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import onnxruntime as ort
import torch
from decoder import CUDA_OPTIONS, emit
from onnx import TensorProto, helper


def graph(heads: int, width: int, scale: float, nonpad: bool) -> bytes:
    """One Attention [1, R, heads * width] in float16."""
    names = ["query", "key", "value"]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, [1, "rows", heads * width]) for n in names]
    feeds = list(names)
    if nonpad:
        inputs.append(helper.make_tensor_value_info("count", TensorProto.INT64, [1]))
        feeds += ["", "", "", "count"]
    node = helper.make_node("Attention", feeds, ["out"], q_num_heads=heads, kv_num_heads=heads, scale=scale)
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT16, [1, "rows", heads * width])
    whole = helper.make_graph([node], "attention", inputs, [out])
    model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    return model.SerializeToString()


def best(work, repeat: int = 6) -> float:
    """Shortest of some calls, seconds."""
    times = []
    for _ in range(repeat):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def kernel_names(work) -> dict[str, float]:
    """GPU kernels of one call, ms."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        work()
        torch.cuda.synchronize()
    rows = [(e.key[:160], round(e.self_device_time_total / 1000, 3)) for e in trace.key_averages()]
    return dict(sorted(rows, key=lambda row: -row[1])[:3])


def onnx_case(name: str, rows: int, heads: int, width: int, scale: float, nonpad: bool) -> None:
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    session = ort.InferenceSession(
        graph(heads, width, scale, nonpad), settings, providers=[("CUDAExecutionProvider", CUDA_OPTIONS)]
    )
    binding = session.io_binding()
    rng = np.random.default_rng(0)
    for key in ("query", "key", "value"):
        value = rng.standard_normal((1, rows, heads * width), dtype=np.float32).astype(np.float16)
        binding.bind_ortvalue_input(key, ort.OrtValue.ortvalue_from_numpy(value, "cuda", 0))
    if nonpad:
        count = ort.OrtValue.ortvalue_from_numpy(np.array([rows], np.int64), "cuda", 0)
        binding.bind_ortvalue_input("count", count)
    binding.bind_output("out", "cuda", 0)

    def work() -> None:
        session.run_with_iobinding(binding)

    work()
    emit(f"attention_{name}", 1000 * best(work), "ms", rows=rows, kernels=kernel_names(work))


def torch_case(rows: int, heads: int, width: int) -> None:
    query, key, value = (torch.randn(1, heads, rows, width, device="cuda", dtype=torch.float16) for _ in range(3))

    def work() -> None:
        torch.nn.functional.scaled_dot_product_attention(query, key, value)

    work()
    emit("attention_torch", 1000 * best(work), "ms", rows=rows, kernels=kernel_names(work))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patches", default="6580,19200")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--width", type=int, default=72)
    args = parser.parse_args()
    ort.preload_dlls()
    scale = args.width**-0.5
    for rows in map(int, args.patches.split(",")):
        for name, width in (("", args.width), ("wide_", 96), ("128_", 128)):
            for nonpad in (True, False):
                kind = "nonpad" if nonpad else "plain"
                onnx_case(f"{name}{kind}", rows, args.heads, width, scale, nonpad)
        torch_case(rows, args.heads, args.width)


if __name__ == "__main__":
    main()
