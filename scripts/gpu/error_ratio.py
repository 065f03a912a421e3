"""Error ratio on CUDA: a few layers at full width, ours in half against Transformers in half, both against fp32.

    python scripts/gpu/error_ratio.py WORK --graphs GRAPHS... [--seeds 16] [--device cuda] [--also use_tf32=1]

The truth is Transformers in float32 on the same half-rounded weights, on the same card. Pooled over seeds, per kind of
tensor and per layer: RMS error of ours over RMS error of Transformers' half. GRAPHS are graph-only packages of the
config in WORK/config.json, one per dtype.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from decoder import emit

HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Pool:
    """Squared errors of ours and of the peer, by name."""

    def __init__(self) -> None:
        self.ours: dict[str, float] = defaultdict(float)
        self.peer: dict[str, float] = defaultdict(float)

    def add(self, names: list[str], ours: torch.Tensor, peer: torch.Tensor, truth: torch.Tensor) -> None:
        for name in names:
            self.ours[name] += float((ours.double() - truth.double()).pow(2).mean())
            self.peer[name] += float((peer.double() - truth.double()).pow(2).mean())

    def ratios(self) -> dict[str, float]:
        return {
            name: round((self.ours[name] / self.peer[name]) ** 0.5, 4) for name in sorted(self.ours) if self.peer[name]
        }


def rounded(state: dict[str, torch.Tensor], half: torch.dtype) -> dict[str, torch.Tensor]:
    """Matmul weights and convolution inputs through half, everything the package keeps in float32 untouched."""
    kept = ("A_log", "dt_bias", "norm.weight", "layernorm.weight", "conv1d.weight", "q_norm.weight", "k_norm.weight")
    return {k: v if k.endswith(kept) else v.to(half).to(v.dtype) for k, v in state.items()}


@torch.no_grad()
def run_upstream(model, embeds: torch.Tensor, pieces: list[int]):
    """Logits of the last position after each piece, and the final states by contract name."""
    from transformers import DynamicCache

    text = model.model.language_model
    cache = DynamicCache(config=model.config.get_text_config())
    logits, start = [], 0
    for size in pieces:
        out = text(inputs_embeds=embeds[:, start : start + size], past_key_values=cache, use_cache=True)
        logits.append(model.lm_head(out.last_hidden_state[:, -1:]))
        start += size
    states = {}
    for index, layer in enumerate(cache.layers):
        if hasattr(layer, "recurrent_states"):
            conv, recurrent = layer.conv_states, layer.recurrent_states
            conv = conv[0] if isinstance(conv, (dict, list, tuple)) else conv
            recurrent = recurrent[0] if isinstance(recurrent, (dict, list, tuple)) else recurrent
            states[f"{index}.conv_state"], states[f"{index}.recurrent_state"] = conv[..., -3:], recurrent
        else:
            states[f"{index}.key"], states[f"{index}.value"] = layer.keys, layer.values
    return logits, states


def run_ours(engine, ids: torch.Tensor, pieces: list[int]) -> dict[str, torch.Tensor]:
    """The same through the package: single tokens by its single-token graph where it has one."""
    from qwen_export.runtime.state import to_numpy

    state, logits, start = engine.empty_state(1), [], 0
    for size in pieces:
        part = ids[:, start : start + size].numpy()
        if size == 1:
            last, state = engine.decode(part[:, 0], state)
        else:
            out, state = engine.step(part, state)
            last = out[:, -1]
        logits.append(torch.from_numpy(last.astype(np.float32)))
        start += size
    values = {"logits": torch.stack(logits, 1)}
    for spec in state.specs:
        value = tensor_of(to_numpy(state.values[spec.past.name], spec.past.dtype))
        values[f"{spec.layer}.{spec.kind}"] = value[:, :, :start] if spec.kind in ("key", "value") else value
    return values


def load(checkpoint: Path, dtype: torch.dtype, half: torch.dtype, device: str):
    from transformers import Qwen3_5ForConditionalGeneration

    model = Qwen3_5ForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
    ).eval()
    model.load_state_dict(rounded(model.state_dict(), half))
    return model.to(dtype).to(device)


@dataclass
class Case:
    """One seed: what goes in, and what both runs of Transformers make of it."""

    ids: torch.Tensor
    pieces: list[int]
    patches: torch.Tensor
    truth: dict[str, torch.Tensor]
    peer: dict[str, torch.Tensor]


GRID = torch.tensor([[1, 6, 8], [1, 4, 4]])


@torch.no_grad()
def cases(checkpoint: Path, name: str, seeds: int, device: str) -> list[Case]:
    """Seeded calls of a prompt, a continued chunk and four decode steps, and two pictures."""
    half = HALF[name]
    truth, peer = load(checkpoint, torch.float32, half, device), load(checkpoint, half, half, device)
    text, vision, out = peer.config.get_text_config(), peer.config.vision_config, []
    width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        pieces = [int(torch.randint(2, 300, (1,), generator=generator)), 17, 1, 1, 1, 1]
        ids = torch.randint(0, text.vocab_size - 64, (1, sum(pieces)), generator=generator)
        embeds = peer.model.language_model.embed_tokens(ids.to(device))
        patches = torch.randn(int(GRID.prod(1).sum()), width, generator=generator)
        values = []
        for model, given in ((truth, embeds.float()), (peer, embeds)):
            logits, states = run_upstream(model, given, pieces)
            features = model.model.visual(patches.to(device, model.dtype), grid_thw=GRID.to(device))
            features = features.pooler_output if hasattr(features, "pooler_output") else features[-1]
            values.append({"logits": torch.cat(logits, 1), "image_features": features, **states})
        out.append(Case(ids, pieces, patches, *values))
    return out


def judge(package: Path, found: list[Case], args: argparse.Namespace, options: list[str]) -> None:
    """One figure: the worst kind of tensor; every kind and layer beside it."""
    from qwen_export.package import open_package
    from qwen_export.runtime.engine import Engine
    from qwen_export.runtime.session import Device

    opened, device = open_package(package), args.device
    opened.recipe.session.cuda.update(option.split("=", 1) for option in options)
    engine = Engine(opened, Device("cuda" if device == "cuda" else "cpu"))
    pool = Pool()
    for case in found:
        values = run_ours(engine, case.ids, case.pieces)
        inputs = {"pixel_values": case.patches.numpy(), "image_grid_thw": GRID.numpy()}
        features = engine.graphs.run_to_host("vision_encoder", inputs)["image_features"]
        values["image_features"] = tensor_of(features)
        for key, wanted in case.truth.items():
            names = [key.split(".")[1], key] if "." in key else [key]
            pool.add(names, values[key].to(device), case.peer[key], wanted)
    ratios = pool.ratios()
    kinds = {k: v for k, v in ratios.items() if "." not in k}
    layers = {k: v for k, v in ratios.items() if "." in k}
    route = {k: v for k, v in os.environ.items() if k.startswith("ORT_")}
    extra = {"dtype": opened.recipe.dtype, "package": package.name, "options": options, "route": route}
    emit("error_ratio", max(kinds.values()), "ratio", **extra, kinds=kinds, layers=layers)


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """A host array of the runtime; bfloat16 travels as uint16."""
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--graphs", type=Path, nargs="+", required=True)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--also", action="append", default=[], help="again with this CUDA provider option, key=value")
    args = parser.parse_args()
    sys.modules["fla"] = None  # type: ignore[assignment]  # its float32 products are no truth
    from qwen_export.checkpoint.synth import synthesise
    from qwen_export.package import bind, open_package

    checkpoint = args.work / "checkpoint"
    if not checkpoint.exists():
        synthesise(checkpoint, json.loads((args.work / "config.json").read_text(encoding="utf-8")))
    found: dict[str, list[Case]] = {}
    for graphs in args.graphs:
        package = args.work / f"bound-{graphs.name}"
        if not package.exists():
            bind(graphs, checkpoint, package)
        name = open_package(package).recipe.dtype
        if name not in found:
            found[name] = cases(checkpoint, name, args.seeds, args.device)
        for options in ([], *([option] for option in args.also)):
            judge(package, found[name], args, options)


if __name__ == "__main__":
    main()
