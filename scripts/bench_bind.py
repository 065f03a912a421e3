"""Measure the weight phase of an export: rate and memory, beside a plain read-cast-transpose-write of the same tensors.

    python scripts/bench_bind.py                                      # makes a wide 1.3 GB checkpoint and exports it
    python scripts/bench_bind.py --checkpoint DIR --graphs GRAPH_ONLY_PKG   # binds an existing pair

Every run is a process of its own; ours and the plain ones take turns. The plain ones hold whole tensors, write one file
per tensor, hash nothing, and get as many threads as ours has (workers and the one that follows). Prints a table, then
one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from qwen_export.bindings import Binding
from qwen_export.checkpoint import Snapshot, load_config, open_snapshot
from qwen_export.checkpoint.synth import synthesise
from qwen_export.package import bind, open_package
from qwen_export.recipe import Recipe
from qwen_export.weights import evaluate
from qwen_export.weights.evaluate import DTYPES, as_matrix
from qwen_export.weights.stream import default_workers


def wide_config() -> dict[str, Any]:
    """The 27B model's width with two layers, a smaller vocabulary and a small vision tower: 1.3 GB in bf16."""
    config = load_config("qwen3.8-27b")
    text = {
        **config["text_config"],
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "vocab_size": 32768,
        "intermediate_size": 4096,
        "mtp_num_hidden_layers": 0,
    }
    vision = {**config["vision_config"], "depth": 1, "hidden_size": 384, "num_heads": 6, "intermediate_size": 1536}
    ids = {"image_token_id": 32000, "video_token_id": 32001, "vision_start_token_id": 32002}
    return {**config, **ids, "vision_end_token_id": 32003, "text_config": text, "vision_config": vision}


def anonymous_bytes() -> int:
    """RssAnon of this process: memory that mapped checkpoint and package pages are no part of."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def peak_during(work: Callable[[], float]) -> dict[str, float]:
    """Run `work`, which returns the seconds of its weight phase, and watch the memory meanwhile."""
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, anonymous_bytes())

    watcher = threading.Thread(target=watch)
    base = anonymous_bytes()
    watcher.start()
    seconds = work()
    done.set()
    watcher.join()
    return {"seconds": seconds, "peak_bytes": peak, "base_bytes": base}


def ours(checkpoint: Path, graphs: Path | None, output: Path, dtype: str) -> float:
    """The product: an export with its weights, or `bind` where graphs are given."""
    if graphs is not None:
        return bind(graphs, checkpoint, output).seconds["weights"]
    from qwen_export.export import export_vlm

    return export_vlm(checkpoint, output, recipe=Recipe(dtype=dtype)).seconds["weights"]


def plain(snapshot: Snapshot, bindings: list[Binding], output: Path, threads: int, with_torch: bool) -> float:
    """The plain way: every tensor whole, one file each."""
    output.mkdir(parents=True)
    convert = plain_torch if with_torch else plain_numpy

    def one(numbered: tuple[int, Binding]) -> None:
        number, binding = numbered
        simple = binding.transform == "identity" and all(part.scale == 1.0 and part.tensor for part in binding.parts)
        stored = convert(snapshot, binding) if simple else evaluate(binding, snapshot.array)
        with open(output / str(number), "wb", buffering=0) as file:
            view = stored.reshape(-1).view(np.uint8).data
            while view:
                view = view[file.write(view) :]

    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(one, enumerate(bindings)))
    return time.perf_counter() - start


def rows_of(snapshot: Snapshot, binding: Binding) -> np.ndarray:
    """The joined rows of a binding's parts, not yet cast."""
    blocks = []
    for part in binding.parts:
        array = snapshot.array(str(part.tensor))
        matrix = array.reshape(as_matrix(array.shape))
        if part.group:
            count, groups, pick = part.group
            matrix = matrix.reshape(count, groups, -1, matrix.shape[1])[:, pick].reshape(-1, matrix.shape[1])
        blocks.append(matrix)
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def plain_numpy(snapshot: Snapshot, binding: Binding) -> np.ndarray:
    """Cast, then transpose, in numpy."""
    stored = rows_of(snapshot, binding).astype(DTYPES[binding.dtype])
    return np.ascontiguousarray(stored.T if binding.transpose else stored)


def plain_torch(snapshot: Snapshot, binding: Binding) -> np.ndarray:
    """Transpose on the raw bits, then cast, in torch: the fastest order of the two."""
    import torch

    torch.set_num_threads(1)
    rows = np.array(rows_of(snapshot, binding))  # read, as mapped pages are not
    tensor = torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
    if binding.transpose:
        tensor = tensor.t().contiguous()
    kinds = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
    tensor = tensor.to(kinds[binding.dtype])
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32).numpy()


def child(arguments: argparse.Namespace) -> None:
    """One measured run in a process of its own; prints one JSON line."""
    work: Callable[[], float]
    if arguments.child == "ours":
        graphs = arguments.graphs if arguments.bind else None
        work = lambda: ours(arguments.checkpoint, graphs, arguments.output, arguments.dtype)  # noqa: E731
    else:
        package = open_package(arguments.graphs)
        snapshot = open_snapshot(arguments.checkpoint)
        bindings = [binding for name in package.components for binding in package.record(name).bindings.values()]
        torch = arguments.child == "plain torch"
        work = lambda: plain(snapshot, bindings, arguments.output, default_workers() + 1, torch)  # noqa: E731
    print(json.dumps(peak_during(work)))


def measure(arguments: argparse.Namespace, scratch: Path) -> dict[str, list[dict[str, float]]]:
    """All runs, taking turns."""
    kinds = ["ours", "plain numpy", *(["plain torch"] if torch_is_there() else [])]
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for turn in range(arguments.repeat):
        for kind in kinds:
            output = scratch / f"out-{turn}-{kind.replace(' ', '-')}"
            command = [sys.executable, __file__, "--child", kind, "--checkpoint", str(arguments.checkpoint)]
            command += ["--graphs", str(arguments.graphs), "--output", str(output), "--dtype", arguments.dtype]
            command += ["--bind"] if arguments.bind else []
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[kind].append(json.loads(done.stdout.splitlines()[-1]))
            shutil.rmtree(output)
    return found


def torch_is_there() -> bool:
    """Whether torch can be compared with."""
    import importlib.util

    return importlib.util.find_spec("torch") is not None


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="bf16 checkpoint; by default a wide one is made")
    parser.add_argument("--graphs", type=Path, help="graph-only package of it; by default it is exported")
    parser.add_argument("--dtype", default="fp16", choices=["fp32", "fp16", "bf16"])
    parser.add_argument("--repeat", type=int, default=3, help="turns; the median counts")
    parser.add_argument("--scratch", type=Path, help="folder for what is written; needs room for two packages")
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--bind", action="store_true", help="measure bind alone instead of the whole export")
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments)
        return
    with tempfile.TemporaryDirectory(dir=arguments.scratch, prefix="bench-bind-") as folder:
        scratch = Path(folder)
        if arguments.checkpoint is None:
            arguments.checkpoint = scratch / "checkpoint"
            synthesise(arguments.checkpoint, wide_config())
        if arguments.graphs is None:
            arguments.graphs = scratch / "graphs"
            make = "import sys; from qwen_export import Recipe, export_vlm; "
            make += "export_vlm(sys.argv[1], sys.argv[2], recipe=Recipe(dtype=sys.argv[3]), graph_only=True)"
            command = [sys.executable, "-c", make, arguments.checkpoint, arguments.graphs, arguments.dtype]
            subprocess.run([str(part) for part in command], check=True)
        else:
            arguments.bind = True
        report(arguments, measure(arguments, scratch))


def report(arguments: argparse.Namespace, found: dict[str, list[dict[str, float]]]) -> None:
    """The table and the JSON line."""
    package, snapshot = open_package(arguments.graphs), open_snapshot(arguments.checkpoint)
    records = [package.record(name) for name in package.components]
    keys = dict.fromkeys(key for record in records for b in record.bindings.values() for key in b.tensors)
    sizes = [snapshot.tensors[key].nbytes for key in keys]
    median = {kind: statistics.median(run["seconds"] for run in runs) for kind, runs in found.items()}
    peak = max(run["peak_bytes"] for run in found["ours"])
    fastest = min(seconds for kind, seconds in median.items() if kind != "ours")
    print(f"{sum(sizes) / 1e9:.2f} GB of tensors to {arguments.dtype}, largest {max(sizes) / 1e9:.2f} GB,")
    print(f"{default_workers() + 1} threads each, {os.cpu_count()} cores, median of {arguments.repeat}\n")
    print(f"{'writer':<14}{'seconds':>9}{'GB/s':>8}{'peak anonymous GB':>20}")
    for kind, runs in found.items():
        memory = max(run["peak_bytes"] for run in runs)
        print(f"{kind:<14}{median[kind]:>9.2f}{sum(sizes) / median[kind] / 1e9:>8.2f}{memory / 1e9:>20.2f}")
    print(f"\nrate against the fastest plain writer: {fastest / median['ours']:.2f} (bar 0.70)")
    bar = 1.2e9 + 2 * max(sizes)
    print(f"anonymous peak of ours: {peak / 1e9:.2f} GB (bar {bar / 1e9:.2f})")
    document = {
        "benchmark": "bind" if arguments.bind else "export",
        "tensor_bytes": sum(sizes),
        "largest_bytes": max(sizes),
        "dtype": arguments.dtype,
        "threads": default_workers() + 1,
        "seconds": median,
        "ratio_to_fastest_plain": fastest / median["ours"],
        "ratio_to_plain_numpy": median["plain numpy"] / median["ours"],
        "peak_anonymous_bytes": peak,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
