"""Prefill on the CPU: is a prompt read in chunks, and does its time grow with its length alone?

    python scripts/bench_prefill.py                  # makes a package of configs/mid.json (fp32, target cpu)
    python scripts/bench_prefill.py --package PKG    # takes one that is there

Three figures: 512 tokens in one call against 512 calls of one token (at least 4 times faster); 2,048 tokens against 512
(at most 5 times slower); trips of the Scan of one layer (the number of chunks). Judged by processor time on one thread,
which other work on the machine does not change; wall time stands beside it. Rounds take turns, the best one counts.
Prints a table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from qwen_export.package import Package, open_package
from qwen_export.runtime.engine import Engine
from qwen_export.runtime.prompt import Prompt
from qwen_export.runtime.session import Device

SHORT, LONG = 512, 2048


def mid_package(folder: Path) -> Path:
    """Export the mid-size config with synthetic weights."""
    from qwen_export import export_vlm
    from qwen_export.checkpoint import load_config
    from qwen_export.checkpoint.synth import synthesise
    from qwen_export.recipe import Recipe

    synthesise(folder / "checkpoint", load_config("mid"))
    recipe = Recipe(dtype="fp32", target="cpu")
    export_vlm(folder / "checkpoint", folder / "package", recipe=recipe, components=("embedding", "decoder"))
    return folder / "package"


def seconds(engine: Engine, ids: np.ndarray, slice_size: int) -> tuple[float, float]:
    """Processor and wall time to read a prompt and give the logits of its last token."""
    begin = time.process_time(), time.perf_counter()
    engine.prefill([Prompt(ids)], slice_size=slice_size)
    return time.process_time() - begin[0], time.perf_counter() - begin[1]


def scan_trips(package: Package, length: int) -> int:
    """Trips of one layer's Scan for a prompt of this length, counted in ONNX Runtime's own profile."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    with tempfile.TemporaryDirectory() as folder:
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
        session = ort.InferenceSession(str(package.graph_path("decoder")), options, providers=["CPUExecutionProvider"])
        text = package.config.text
        sizes = {"batch": 1, "sequence_length": length, "past_sequence_length": 0}
        sizes["past_sequence_length + sequence_length"] = length
        feeds = {
            spec.name: np.zeros([sizes.get(d, d) for d in spec.shape], spec.dtype)
            for spec in package.contract("decoder").inputs
        }
        feeds["attention_mask"] += 1
        session.run(["logits"], feeds)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        del session
    bodies = [
        event for event in events if "carry_state" in event["name"] and event.get("args", {}).get("op_name") == "Add"
    ]
    return len(bodies) // len(text.linear_layers)


def measure(package: Package, rounds: int) -> dict[str, Any]:
    """All figures of one package."""
    engine = Engine(package, Device("cpu"), threads=1)
    ids = np.random.default_rng(0).integers(1, package.config.text.vocab_size // 2, LONG)
    ways = {"prefill_512": (ids[:SHORT], SHORT), "single_steps_512": (ids[:SHORT], 1), "prefill_2048": (ids, LONG)}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for length in (2, 1):  # opens the sessions, and touches the weights of both branches
        seconds(engine, ids[:length], length)
    for _ in range(rounds):
        for name, (tokens, slice_size) in ways.items():
            taken[name].append(seconds(engine, tokens, slice_size))
    processor = {name: min(cpu for cpu, _ in times) for name, times in taken.items()}
    wall = {name: min(seen for _, seen in times) for name, times in taken.items()}
    chunk, lengths = package.recipe.effective_chunk_size, (SHORT, SHORT + 1, LONG)
    return {
        "chunk": chunk,
        "processor_s": {name: round(value, 3) for name, value in processor.items()},
        "wall_s": {name: round(value, 3) for name, value in wall.items()},
        "chunked_speedup": round(processor["single_steps_512"] / processor["prefill_512"], 2),
        "growth_2048_over_512": round(processor["prefill_2048"] / processor["prefill_512"], 2),
        "scan_trips": {length: scan_trips(package, length) for length in lengths},
        "expected_trips": {length: -(-length // chunk) for length in lengths},
    }


def report(figures: dict[str, Any]) -> bool:
    """Print the table and the JSON line. Returns whether all three limits hold."""
    verdicts = {
        "512 tokens at once / one by one": (figures["chunked_speedup"], ">= 4", figures["chunked_speedup"] >= 4),
        "2,048 tokens / 512": (figures["growth_2048_over_512"], "<= 5", figures["growth_2048_over_512"] <= 5),
        "Scan trips": (
            figures["scan_trips"],
            figures["expected_trips"],
            figures["scan_trips"] == figures["expected_trips"],
        ),
    }
    for name, (value, limit, good) in verdicts.items():
        print(f"{name:34} {value!s:32} limit {limit!s:32} {'pass' if good else 'FAIL'}")
    print(json.dumps(figures))
    return all(good for _, _, good in verdicts.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--package", type=Path, help="a package with a decoder; without it one is made of configs/mid.json"
    )
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        package = open_package(args.package or mid_package(Path(folder)))
        return 0 if report(measure(package, args.rounds)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
