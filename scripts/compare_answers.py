"""Ask several systems the same held-out questions, half free and half multiple choice, and compare token by token.

    python scripts/compare_answers.py CHECKPOINT --package PKG32 --package PKG16 --genai PKG32 --reference fp32 fp16 \
        --count 400 --output answers

Every answer is on disk when it is made, and a run that was stopped goes on. Prints accuracy by kind and form, and for
every two systems the share of equal token sequences and each difference with both logit margins.
"""

from __future__ import annotations

import argparse
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

from tiny_vlm.trials import Trial, held_out_trials

from qwen_export.evaluate import System, genai_system, package_system, reference_system
from qwen_export.evaluate.records import FILE_NAME, RecordFile
from qwen_export.evaluate.summary import first_difference
from qwen_export.package import open_package
from qwen_export.runtime.session import Device

NEW_TOKENS = 16


def main() -> int:
    """Ask, compare, print."""
    parser = argparse.ArgumentParser(description="Compare answers of several systems.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--package", type=Path, action="append", default=[])
    parser.add_argument("--genai", type=Path, action="append", default=[])
    parser.add_argument("--reference", nargs="*", default=["fp32"])
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--new-orders", action="store_true", help="Options in orders that training never had.")
    parser.add_argument("--provider", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    trials = held_out_trials(args.count, args.seed, plain_order=not args.new_orders)
    systems = _systems(args)
    run = {"checkpoint": args.checkpoint.name, "count": args.count, "seed": args.seed, "new_orders": args.new_orders}
    with RecordFile(args.output / FILE_NAME, run, resume=True) as file:
        for system in systems:
            file.add_system({"name": system.name, **system.facts})
            _ask(system, trials, file)
        answers = {system.name: file.records.of(system.name) for system in systems}
    for name, records in answers.items():
        _print_accuracy(name, trials, records)
    for first, second in combinations(answers, 2):
        _print_agreement(first, answers[first], second, answers[second])
    return 0


def _systems(args: argparse.Namespace) -> list[System]:
    systems = []
    for path in args.package:
        made = package_system(open_package(path), Device(args.provider), args.threads)
        systems.append(System(f"ort-{made.facts['dtype']}", made.facts, made.open))
    for path in args.genai:
        made = genai_system(open_package(path), args.provider, args.threads)
        systems.append(System(f"genai-{made.facts['dtype']}", made.facts, made.open))
    device = "cpu" if args.provider == "cpu" else "cuda:0"
    return systems + [reference_system(args.checkpoint, dtype=dtype, device=device) for dtype in args.reference]


def _ask(system: System, trials: list[Trial], file: RecordFile) -> None:
    known = file.records.of(system.name)
    missing = [index for index in range(len(trials)) if index not in known]
    if not missing:
        return
    answerer = system.open()
    for index in missing:
        trial = trials[index]
        reply = answerer.answer(trial.png(), f"trial {index}", trial.question.prompt, NEW_TOKENS)
        record = {"text": reply.text, "tokens": reply.tokens, "margins": reply.margins, "seconds": reply.seconds}
        file.add_answer({"system": system.name, "index": index, **record})
        if index % 50 == 49:
            print(f"{system.name}: {index + 1} of {len(trials)}", file=sys.stderr, flush=True)
    answerer.close()


def _print_accuracy(name: str, trials: list[Trial], records: dict[int, dict[str, Any]]) -> None:
    counts: dict[str, list[int]] = {}
    for index, record in records.items():
        trial = trials[index]
        form = "letters" if trial.question.options else "free"
        size = "on the grid" if trial.on_grid else "off the grid"
        for group in (form, f"{form}, {trial.question.kind}", f"{form}, size {size}"):
            right, asked = counts.setdefault(group, [0, 0])
            counts[group] = [right + (record["text"] == trial.question.reply), asked + 1]
    print(f"{name}")
    for group, (right, asked) in sorted(counts.items()):
        print(f"  {group:28s} {right:4d} / {asked:4d}  {right / asked:6.1%}")


def _print_agreement(first: str, a: dict[int, dict[str, Any]], second: str, b: dict[int, dict[str, Any]]) -> None:
    differing = [index for index in a if a[index]["tokens"] != b[index]["tokens"]]
    same = len(a) - len(differing)
    print(f"{first} and {second}: same tokens on {same} of {len(a)} ({same / len(a):.1%})")
    for index in differing:
        step = first_difference(a[index]["tokens"], b[index]["tokens"])
        margins = [f"{r[index]['margins'][step]:.4f}" if step < len(r[index]["margins"]) else "ended" for r in (a, b)]
        print(f"  trial {index}, token {step}: {a[index]['text']!r} (margin {margins[0]}) / "
              f"{b[index]['text']!r} (margin {margins[1]})")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
