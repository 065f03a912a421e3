"""Time Transformers itself on the same shapes: eager with SDPA, float16, random weights made on the card.

    python scripts/gpu/hf.py CONFIG.json [--lengths 314,1705,4875] [--patches 1064,6580,19200] [--kernels fla|torch]

`--kernels torch` hides flash-linear-attention even where it is installed: the reference PyTorch delta rule.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from decoder import emit, gpu_memory


def build(config_file: Path):
    """The whole model on the card without reading a checkpoint."""
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    raw = json.loads(config_file.read_text(encoding="utf-8"))
    config = Qwen3_5Config(**{key: value for key, value in raw.items() if key != "model_type"})
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        model = Qwen3_5ForConditionalGeneration(config)
    model = model.to(torch.float16).to_empty(device="cuda").eval()
    generator = torch.Generator("cuda").manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.015, generator=generator)
        for module in model.modules():
            if hasattr(module, "inv_freq"):
                fresh = type(module)(module.config).inv_freq
                module.inv_freq = fresh.to("cuda")
    return model


def seconds(work) -> float:
    """Wall time of a call, the card finished before and after."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


@torch.no_grad()
def text(model, lengths: list[int], tokens: int, tag: str) -> None:
    """Prefill, and decode after it."""
    from transformers import DynamicCache

    generator = torch.Generator("cuda").manual_seed(1)
    for length in lengths:
        ids = torch.randint(0, 200000, (1, length), device="cuda", generator=generator)
        times = []
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for _ in range(3):
            cache = DynamicCache(config=model.config.get_text_config())

            def prefill(ids=ids, cache=cache):
                return model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits.argmax(-1)

            times.append(seconds(prefill))
        peak = (torch.cuda.max_memory_allocated() - before) / 1e9
        emit("hf_prefill", min(times[1:]), "s", tokens=length, first=times[0], tag=tag, peak_gb=peak)
        steps = []
        token = ids[:, :1]
        for _ in range(tokens):

            def step(token=token, cache=cache):
                out = model(input_ids=token, past_key_values=cache, use_cache=True, logits_to_keep=1)
                return out.logits.argmax(-1).item()

            steps.append(seconds(step))
        emit("hf_decode", 1000 * float(np.median(steps[3:])), "ms", context=length, best=1000 * min(steps), tag=tag)


@torch.no_grad()
def vision(model, patches: list[int]) -> None:
    """The vision tower alone."""
    tower = model.model.visual
    width = tower.config.in_channels * tower.config.temporal_patch_size * tower.config.patch_size**2
    for count in patches:
        height, breadth = grid_of(count)
        grid = torch.tensor([[1, height, breadth]], device="cuda")
        pixels = torch.randn(count, width, device="cuda", dtype=torch.float16)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        times = [seconds(lambda p=pixels, g=grid: tower(p, grid_thw=g)) for _ in range(5)]
        peak = (torch.cuda.max_memory_allocated() - before) / 1e9
        emit("hf_vision", min(times[1:]), "s", patches=count, first=times[0], workspace_gb=peak)


def grid_of(patches: int) -> tuple[int, int]:
    """The most square even grid with that many patches."""
    side = int(patches**0.5)
    for height in range(side - side % 2, 1, -2):
        if patches % height == 0 and (patches // height) % 2 == 0:
            return height, patches // height
    raise ValueError(f"{patches} patches have no even grid")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--lengths", default="314,1705,4875")
    parser.add_argument("--patches", default="1064,6580,19200")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--kernels", choices=("torch", "fla"), default="torch")
    args = parser.parse_args()
    if args.kernels == "torch":
        sys.modules["fla"] = None  # type: ignore[assignment]
    before = gpu_memory()
    model = build(args.config)
    emit("hf_memory_after_load", gpu_memory() - before, "GB", tag=args.kernels)
    text(model, [int(x) for x in args.lengths.split(",")], args.tokens, args.kernels)
    if args.patches:
        vision(model, [int(x) for x in args.patches.split(",")])


if __name__ == "__main__":
    main()
