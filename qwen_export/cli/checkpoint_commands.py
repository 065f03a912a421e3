"""Commands about checkpoints alone: synth."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from qwen_export.cli import options as opt
from qwen_export.cli.outcome import Outcome
from qwen_export.cli.output import size
from qwen_export.cli.progress import ProgressDisplay
from qwen_export.cli.tables import facts


def synth(
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.", show_default=False)],
    config: Annotated[
        str, typer.Option("--config", metavar="NAME|FILE", help="tiny, mid, qwen3.8-27b, or a config.json.")
    ] = "tiny",
    seed: Annotated[int, typer.Option("--seed", help="Seed of the weights.")] = 0,
    plan: Annotated[bool, typer.Option("--plan", metavar="", help="Count tensors and bytes, write nothing.")] = False,
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
) -> Outcome:
    """Write a synthetic checkpoint with lively random weights in the official layout."""
    from qwen_export.checkpoint import load_config, synth

    content = load_config(config)
    planned = synth.plan(content)
    if not plan:
        with ProgressDisplay() as progress:
            progress.stage(f"writing {output}")
            synth.synthesise(output, content, seed=seed, progress=progress.count_bytes)
    rows = {
        "config": config,
        "tensors": f"{planned.num_tensors:,} ({planned.num_visual_tensors:,} visual)",
        "bytes": f"{planned.num_bytes:,} ({size(planned.num_bytes)})",
        "shards": f"{planned.num_shards:,}",
        "planned" if plan else "written": str(output),
    }
    document = {"config": config, "seed": seed, "output": None if plan else str(output), **asdict(planned)}
    return Outcome(document, [facts(rows)])
