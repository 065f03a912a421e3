"""The whole model at full size: make a synthetic checkpoint, bind graphs exported elsewhere, answer and serve.

    python scripts/gpu/full_size.py make CHECKPOINT GRAPHS PACKAGE [--config qwen3.8-27b] [--plain-bytes N]
    python scripts/gpu/full_size.py time PACKAGE [--provider cuda] [--lengths 314,1705,4875]
    python scripts/gpu/full_size.py serve PACKAGE [--requests 60]

Every figure is one JSON line. `time` and `serve` drive the project's own runtime: embedding, decoder in slices, and the
captured single-token graph where the package has one.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from decoder import emit, gpu_memory
from hf import grid_of

from qwen_export.runtime.preprocess import IMAGE, Media
from qwen_export.runtime.prompt import Prompt


class Peak:
    """The largest anonymous memory of this process while the block runs, GB."""

    def __enter__(self) -> Peak:
        self.value, self._done = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
                if line.startswith("RssAnon"):
                    self.value = max(self.value, int(line.split()[1]) / 1e6)


def make(args: argparse.Namespace) -> None:
    """Synthesise, bind, audit; then a plain read-cast-transpose-write of some tensors with as many threads."""
    from qwen_export.checkpoint import load_config, open_snapshot
    from qwen_export.checkpoint.synth import plan, synthesise
    from qwen_export.package import audit, bind, open_package
    from qwen_export.weights.stream import default_workers

    config = load_config(args.config)
    size = plan(config).num_bytes
    with Peak() as peak:
        start = time.perf_counter()
        synthesise(args.checkpoint, config)
        seconds = time.perf_counter() - start
    emit("synth", seconds, "s", bytes=size, rate_gb_s=size / seconds / 1e9, anonymous_gb=peak.value)
    with Peak() as peak:
        start = time.perf_counter()
        bind(args.graphs, args.checkpoint, args.package)
        seconds = time.perf_counter() - start
    package = open_package(args.package)
    written = sum(package.data_path(name).stat().st_size for name in package.components)
    rate = written / seconds / 1e9
    emit("bind", seconds, "s", bytes=written, rate_gb_s=rate, anonymous_gb=peak.value, workers=default_workers())
    start = time.perf_counter()
    report = audit(args.package)
    emit("audit", time.perf_counter() - start, "s", passed=report.ok, findings=len(report.findings))
    plain_rate(open_snapshot(args.checkpoint), package, args.plain_bytes, default_workers() + 1, rate)


def plain_rate(snapshot, package, limit: int, threads: int, ours: float) -> None:
    """Whole tensors read, cast, transposed and written to a file each, at most `limit` bytes of them."""
    chosen, total = [], 0
    for binding in package.record("decoder").bindings.values():
        part = binding.parts[0]
        if len(binding.parts) == 1 and binding.transpose and total < limit:
            chosen.append((part.tensor, binding))
            total += int(np.prod(binding.shape)) * 2
    folder = package.folder.parent / "plain"
    folder.mkdir()

    def work(item) -> None:
        index, (key, _binding) = item
        value = np.asarray(snapshot.array(key)).astype(np.float32).astype(np.float16)
        np.ascontiguousarray(value.T).tofile(folder / str(index))

    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, enumerate(chosen)))
    seconds = time.perf_counter() - start
    emit(
        "plain_write",
        seconds,
        "s",
        bytes=total,
        rate_gb_s=total / seconds / 1e9,
        ours_over_plain=ours * seconds * 1e9 / total,
    )
    for file in folder.iterdir():
        file.unlink()


def prompt_of(engine, tokens: int, patches: int, seed: int) -> Prompt:
    """A prompt of that many tokens, its picture's placeholders included."""
    config, rng = engine.config, np.random.default_rng(seed)
    ids = rng.integers(0, min(240000, config.text.vocab_size - 64), tokens)
    if not patches:
        return Prompt(ids)
    grid = (1, *grid_of(patches))
    pixels = rng.standard_normal((patches, config.vision.patch_width), dtype=np.float32)
    features = patches // config.vision.merge_unit
    ids[2 : 2 + features] = config.image_token_id
    return Prompt(ids, (Media(IMAGE, pixels, grid, f"random {patches}"),))


def open_engine(args: argparse.Namespace):
    from qwen_export.package import open_package
    from qwen_export.runtime.engine import Engine
    from qwen_export.runtime.session import Device

    before = gpu_memory()
    start = time.perf_counter()
    engine = Engine(open_package(args.package), Device(args.provider))
    for component in ("embedding", "vision_encoder", engine.graphs.decoder):
        engine.graphs.sessions.get(component)
    emit("open_package", time.perf_counter() - start, "s", gpu_gb=gpu_memory() - before)
    return engine


def answer(engine, prompt: Prompt, tokens: int) -> tuple[float, float, list[int]]:
    """Seconds to the first token, seconds in all, and the greedy tokens."""
    start = time.perf_counter()
    logits, state = engine.prefill([prompt])
    out = [int(logits[0].argmax())]
    first = time.perf_counter() - start
    for _ in range(tokens - 1):
        logits, state = engine.decode(np.array([out[-1]]), state)
        out.append(int(logits[0].argmax()))
    return first, time.perf_counter() - start, out


def clock(args: argparse.Namespace) -> None:
    """Prefill, decode, memory, and one whole answer about a picture."""
    engine = open_engine(args)
    loaded = gpu_memory()
    for length in map(int, args.lengths.split(",")):
        prompt = prompt_of(engine, length, 0, length)
        times, steps = [], []
        for _ in range(3):
            state = None
            start = time.perf_counter()
            logits, state = engine.prefill([prompt])
            times.append(time.perf_counter() - start)
        finite = bool(np.isfinite(logits).all())
        emit("runtime_prefill", min(times[1:]), "s", tokens=length, first=times[0], finite=finite)
        for _ in range(args.tokens):
            start = time.perf_counter()
            logits, state = engine.decode(np.array([7]), state)
            steps.append(time.perf_counter() - start)
        emit("runtime_decode", 1000 * float(np.median(steps[3:])), "ms", context=length, best=1000 * min(steps))
        emit("runtime_memory_above_weights", gpu_memory() - loaded, "GB", tokens=length)
    patches, tokens = map(int, args.picture.split(","))
    runs = [answer(engine, prompt_of(engine, tokens, patches, 1), 16) for _ in range(3)]
    first, whole, out = min(runs[1:], key=lambda run: run[1])
    emit("answer", whole, "s", patches=patches, tokens=tokens, first_token=first, same=runs[0][2] == out)


def serve(args: argparse.Namespace) -> None:
    """Mixed requests in one process: memory after each, and the first ones asked again at the end."""
    engine = open_engine(args)
    loaded = gpu_memory()
    rng = np.random.default_rng(5)
    largest = args.largest_tokens
    requests = [(int(rng.integers(16, largest)), 0) for _ in range(args.requests // 2)]
    for _ in range(args.requests - len(requests)):
        patches = int(rng.choice([64, 256, 1064, 2304, 6580, 19200][: args.picture_sizes]))
        requests.append((patches // 4 + int(rng.integers(16, 75)), patches))
    rng.shuffle(requests)
    memory, answers, failed = [], [], 0
    start = time.perf_counter()
    for index, (tokens, patches) in enumerate(requests):
        try:
            answers.append(answer(engine, prompt_of(engine, tokens, patches, index), 4)[2])
        except Exception as error:
            failed += 1
            answers.append([])
            print(f"request {index} ({tokens} tokens, {patches} patches): {type(error).__name__}: {error}", flush=True)
        memory.append(gpu_memory() - loaded)
    seconds = time.perf_counter() - start
    third = len(memory) // 3
    emit("serve", seconds, "s", requests=len(requests), failed=failed)
    emit("serve_memory", max(memory), "GB", first_third=max(memory[:third]), last_third=max(memory[-third:]))
    emit("serve_card", gpu_memory(), "GB")
    again = [
        answer(engine, prompt_of(engine, *requests[i], i), 4)[2] == answers[i] for i in range(min(8, len(requests)))
    ]
    emit("serve_repeated_equal", sum(again), "requests", of=len(again))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("make")
    for name in ("checkpoint", "graphs", "package"):
        one.add_argument(name, type=Path)
    one.add_argument("--config", default="qwen3.8-27b")
    one.add_argument("--plain-bytes", type=int, default=8 << 30)
    one.set_defaults(run=make)
    for name, run in (("time", clock), ("serve", serve)):
        one = commands.add_parser(name)
        one.add_argument("package", type=Path)
        one.add_argument("--provider", default="cuda")
        one.set_defaults(run=run)
        if run is clock:
            one.add_argument("--lengths", default="314,1705,4875")
            one.add_argument("--tokens", type=int, default=20)
            one.add_argument("--picture", default="1064,314", help="patches,tokens of the whole answer")
        else:
            one.add_argument("--requests", type=int, default=60)
            one.add_argument("--largest-tokens", type=int, default=4875)
            one.add_argument("--picture-sizes", type=int, default=6)
    args = parser.parse_args()
    if getattr(args, "provider", "") == "cuda":
        os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    args.run(args)


if __name__ == "__main__":
    main()
