"""Time the decoder on ONNX Runtime: prefill, decode, memory, executed nodes, kernels.

    python scripts/gpu/decoder.py MODEL.onnx [--provider cuda] [--lengths 314,1705,4875] [--slices 1024] [--profile]

Prints one JSON line per figure. States stay on the device (IOBinding); the mask, positions and embeddings go in, the
last logits come out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort

CUDA_OPTIONS = {
    "use_tf32": "0",
    "cudnn_conv_algo_search": "HEURISTIC",
    "arena_extend_strategy": "kSameAsRequested",
    "use_ep_level_unified_stream": "1",
}


def emit(name: str, value: float, unit: str, **extra: object) -> None:
    """One figure as one JSON line."""
    print(json.dumps({"name": name, "value": round(float(value), 5), "unit": unit, **extra}), flush=True)


def gpu_memory() -> float:
    """GPU memory in use on the whole card, GB."""
    try:
        import torch

        free, total = torch.cuda.mem_get_info()
        return (total - free) / 1e9
    except (ImportError, RuntimeError, AssertionError):
        return 0.0


class Decoder:
    """A session and its carried states."""

    def __init__(
        self,
        model: str,
        provider: str,
        options: dict[str, str],
        profile: bool = False,
        mem_pattern: bool = False,
        arena_log: bool = False,
    ) -> None:
        settings = ort.SessionOptions()
        settings.log_severity_level = 1 if arena_log else 3
        settings.enable_profiling = profile
        settings.enable_mem_pattern = mem_pattern
        settings.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
        providers = [("CUDAExecutionProvider", options)] if provider == "cuda" else ["CPUExecutionProvider"]
        start = time.perf_counter()
        self.session = ort.InferenceSession(model, settings, providers=providers)
        self.load_seconds = time.perf_counter() - start
        self.device = provider
        self.states = [i for i in self.session.get_inputs() if i.name.startswith("past_key_values")]
        self.embeds = self.session.get_inputs()[0]
        self.present = [o.name for o in self.session.get_outputs()][1:]
        self.reset()

    def reset(self) -> None:
        """Empty states."""
        self.length = 0
        self.past = {}
        for spec in self.states:
            shape = [1 if i == 0 else (d if isinstance(d, int) else 0) for i, d in enumerate(spec.shape)]
            dtype = np.float32 if "float16" not in spec.type else np.float16
            self.past[spec.name] = self.value(np.zeros(shape, dtype))

    def value(self, array: np.ndarray) -> ort.OrtValue:
        """An array on the device."""
        return ort.OrtValue.ortvalue_from_numpy(array, self.device, 0)

    def feed(self, embeds: np.ndarray) -> np.ndarray:
        """Run the tokens [1, S, D] on the carried states. Returns the last logits."""
        tokens = embeds.shape[1]
        total = self.length + tokens
        binding = self.session.io_binding()
        positions = np.broadcast_to(np.arange(self.length, total, dtype=np.int64), (3, 1, tokens)).copy()
        binding.bind_ortvalue_input(self.embeds.name, self.value(embeds))
        binding.bind_ortvalue_input("attention_mask", self.value(np.ones((1, total), np.int64)))
        binding.bind_ortvalue_input("position_ids", self.value(positions))
        for name, value in self.past.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_output("logits", "cpu")
        for name in self.present:
            binding.bind_output(name, self.device, 0)
        start = time.perf_counter()
        self.session.run_with_iobinding(binding)
        self.run_seconds = time.perf_counter() - start
        logits, *states = binding.get_outputs()
        self.past = dict(zip(self.past, states, strict=True))
        self.length = total
        return logits.numpy()

    def prefill(self, embeds: np.ndarray, piece: int) -> tuple[float, np.ndarray]:
        """Seconds for a whole prompt fed in slices, and the last logits."""
        self.reset()
        start = time.perf_counter()
        for first in range(0, embeds.shape[1], piece):
            logits = self.feed(embeds[:, first : first + piece])
        return time.perf_counter() - start, logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--provider", default="cuda")
    parser.add_argument("--lengths", default="64,314,1705,4875")
    parser.add_argument("--slices", default="1024")
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--mem-pattern", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--arena-log", action="store_true", help="let ONNX Runtime log what its arena asks for")
    parser.add_argument("--tag", default="")
    parser.add_argument("--option", action="append", default=[], help="CUDA provider option key=value")
    args = parser.parse_args()
    if args.provider == "cuda":
        ort.preload_dlls()
    options = CUDA_OPTIONS | dict(o.split("=", 1) for o in args.option)
    before = gpu_memory()
    decoder = Decoder(args.model, args.provider, options, args.profile, args.mem_pattern, args.arena_log)
    extra = {"tag": args.tag}
    emit("load", decoder.load_seconds, "s", **extra)
    emit("memory_after_load", gpu_memory() - before, "GB", **extra)
    loaded = gpu_memory()
    rng = np.random.default_rng(0)
    width = decoder.embeds.shape[2]
    half = "float16" in decoder.embeds.type
    for length in map(int, args.lengths.split(",")):
        embeds = rng.standard_normal((1, length, width)).astype(np.float16 if half else np.float32)
        for piece in map(int, args.slices.split(",")):
            times = []
            for _ in range(3):
                seconds, logits = decoder.prefill(embeds, piece)
                times.append(seconds)
            finite = bool(np.isfinite(logits.astype(np.float32)).all())
            emit("prefill", min(times[1:]), "s", tokens=length, slice=piece, first=times[0], finite=finite, **extra)
        emit("memory_above_weights", gpu_memory() - loaded, "GB", tokens=length, **extra)
        steps, runs = [], []
        for _ in range(args.tokens):
            start = time.perf_counter()
            decoder.feed(embeds[:, :1])
            steps.append(time.perf_counter() - start)
            runs.append(decoder.run_seconds)
        run = 1000 * float(np.median(runs[3:]))
        emit(
            "decode", 1000 * float(np.median(steps[3:])), "ms", context=length, best=1000 * min(steps), run=run, **extra
        )
    if args.profile:
        report_profile(Path(decoder.session.end_profiling()))
    elif args.kernels:
        decoder_kernels(decoder, embeds)


def report_profile(file: Path) -> None:
    """Executed nodes of the last decode step, by operator."""
    events = [e for e in json.loads(file.read_text()) if e.get("cat") in ("Node", "Session")]
    runs = [i for i, e in enumerate(events) if e["name"] == "model_run"]
    last = events[runs[-2] + 1 : runs[-1]] if len(runs) > 1 else events
    nodes = [e for e in last if e["name"].endswith("_kernel_time")]
    kinds = Counter(e["args"]["op_name"] for e in nodes)
    places = Counter(e["args"].get("provider", "?") for e in nodes)
    views = sum(kinds[k] for k in ("Reshape", "Squeeze", "Unsqueeze", "Identity"))
    emit("executed_nodes", len(nodes) - views, "nodes", views=views, kinds=dict(kinds.most_common()), on=dict(places))
    file.unlink()


def decoder_kernels(decoder: Decoder, embeds: np.ndarray) -> None:
    """GPU kernels of one decode step and of one 1,024-token slice."""
    for name, tokens in (("decode_step", 1), ("slice", min(1024, embeds.shape[1]))):
        decoder.feed(embeds[:, :tokens])
        kernels(name, lambda part=embeds[:, :tokens]: decoder.feed(part))


def kernels(name: str, work: Callable[[], object]) -> None:
    """GPU kernels of one call, through CUPTI: the largest ones as text, their sum as a figure."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        start = time.perf_counter()
        work()
        wall = time.perf_counter() - start
    rows = [(e.key, e.self_device_time_total, e.count) for e in trace.key_averages()]
    busy, launches = sum(r[1] for r in rows), sum(r[2] for r in rows)
    emit(f"{name}_gpu_busy", busy / 1000, "ms", wall_ms=round(wall * 1000, 2), launches=launches)
    for key, micros, count in sorted(rows, key=lambda r: -r[1])[:22]:
        print(f"    {micros / 1000:9.3f} ms {count:6d}  {key[:110]}", flush=True)


if __name__ == "__main__":
    main()
