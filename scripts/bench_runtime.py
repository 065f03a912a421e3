"""Prefill and decode speed of a package on the CPU, against Transformers in float32, in one run on one machine.

    python scripts/bench_runtime.py PACKAGE CHECKPOINT [--prompt 512] [--new 64] [--rounds 3] [--threads N]

Both sides decode greedily from the same seeded text prompt with the same number of threads, in alternating rounds; the
best round of each counts, since other work on the machine only ever slows a round down. Prints a table, then one line
of JSON. Needs torch and Transformers for the comparison; the package's half does not import them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from qwen_export.package import open_package
from qwen_export.runtime.engine import Engine
from qwen_export.runtime.generate import generate
from qwen_export.runtime.prompt import Prompt
from qwen_export.runtime.sampling import Sampler, Sampling

Round = tuple[float, float, list[int]]
"""Seconds of prefill (first token included), seconds of all further tokens, tokens."""


def package_round(engine: Engine, ids: np.ndarray, new_tokens: int) -> Round:
    """One prompt through the package."""
    made = generate(
        engine, [Prompt(ids)], max_new_tokens=new_tokens, end_tokens=frozenset(), sampler=Sampler(Sampling())
    )
    return made.statistics.time_to_first_token, made.statistics.decode_time, list(made.tokens[0])


def transformers_round(model: Any, ids: np.ndarray, new_tokens: int) -> Round:
    """The same through `generate()`: once for one token, once for all; the difference is decoding."""
    import torch

    prompt = torch.from_numpy(ids)[None]

    def run(count: int) -> tuple[float, list[int]]:
        begin = time.perf_counter()
        with torch.no_grad():
            out = model.generate(prompt, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
        return time.perf_counter() - begin, out[0, len(ids) :].tolist()

    (first, _), (whole, tokens) = run(1), run(new_tokens)
    return first, whole - first, tokens


def load_transformers(checkpoint: Path, threads: int) -> Any:
    """The checkpoint in float32."""
    import torch
    from transformers import Qwen3_5ForConditionalGeneration

    torch.set_num_threads(threads)
    return Qwen3_5ForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.float32, local_files_only=True
    ).eval()


def best(rounds: list[Round], prompt: int, new_tokens: int) -> dict[str, float]:
    """Tokens per second of the best round, prefill and decode apart."""
    return {
        "prefill": prompt / min(first for first, _, _ in rounds),
        "decode": (new_tokens - 1) / min(rest for _, rest, _ in rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    engine = Engine(open_package(options.package), threads=options.threads)
    ids = np.random.default_rng(0).integers(0, engine.config.text.vocab_size // 2, size=options.prompt)
    model = load_transformers(options.checkpoint, options.threads)
    sides: dict[str, Callable[[], Round]] = {
        "package": lambda: package_round(engine, ids, options.new),
        "transformers": lambda: transformers_round(model, ids, options.new),
    }
    rounds: dict[str, list[Round]] = {name: [] for name in sides}
    for _ in range(options.rounds + 1):
        for name, side in sides.items():
            rounds[name].append(side())
    # The first round opens sessions and warms caches.
    speed = {name: best(made[1:], options.prompt, options.new) for name, made in rounds.items()}
    same = rounds["package"][-1][2] == rounds["transformers"][-1][2]
    print(f"{'tokens/s':14}{'prefill ' + str(options.prompt):>14}{'decode':>10}")
    for name, figures in speed.items():
        print(f"{name:14}{figures['prefill']:14.1f}{figures['decode']:10.1f}")
    ratio = {key: speed["package"][key] / speed["transformers"][key] for key in ("prefill", "decode")}
    print(f"{'ratio':14}{ratio['prefill']:14.2f}{ratio['decode']:10.2f}")
    print(f"{options.new} greedy tokens {'equal' if same else 'DIFFER'}; {options.threads} threads, best of rounds")
    print(json.dumps({"speed": speed, "ratio": ratio, "tokens_equal": same, "threads": options.threads}))


if __name__ == "__main__":
    main()
