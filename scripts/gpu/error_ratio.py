"""Error ratio on CUDA: a few layers at full width, ours in half against Transformers in half, both against fp32.

    python scripts/gpu/error_ratio.py WORK --graphs GRAPHS... [--seeds 16] [--device cuda]

The truth is Transformers in float32 on the same half-rounded weights, on the same card. Pooled over seeds, per kind of
tensor and per layer: RMS error of ours over RMS error of Transformers' half. GRAPHS are graph-only packages of the
config in WORK/config.json, one per dtype.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
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


def run_ours(engine, embeds: torch.Tensor, pieces: list[int], device: str):
    """The same through the package's decoder."""
    from qwen_export.runtime.state import to_device, to_numpy

    dtype = engine.recipe.tensor_dtype
    state = engine.empty_state(1)
    values, logits, start = dict(state.values), [], 0
    contract = engine.graphs.contract("decoder")
    for size in pieces:
        part = embeds[:, start : start + size]
        host = part.cpu().view(torch.int16).numpy().view(np.uint16) if dtype == "bfloat16" else part.cpu().numpy()
        total = start + size
        inputs = {
            "inputs_embeds": to_device(host, dtype, engine.graphs.device),
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.broadcast_to(np.arange(start, total), (3, 1, size)).astype(np.int64),
            **values,
        }
        out = engine.graphs.run("decoder", inputs, to_host=frozenset({"logits"}))
        logits.append(torch.from_numpy(to_numpy(out["logits"], contract.outputs[0].dtype).astype(np.float32)))
        values = {s.past.name: out[s.present.name] for s in state.specs}
        start = total
    states = {}
    for spec in state.specs:
        array = to_numpy(values[spec.past.name], spec.past.dtype)
        tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if array.dtype == np.uint16 else None
        states[f"{spec.layer}.{spec.kind}"] = torch.from_numpy(array) if tensor is None else tensor
    return [x.to(device) for x in logits], {k: v.to(device) for k, v in states.items()}


def load(checkpoint: Path, dtype: torch.dtype, half: torch.dtype, device: str):
    from transformers import Qwen3_5ForConditionalGeneration

    model = Qwen3_5ForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
    ).eval()
    model.load_state_dict(rounded(model.state_dict(), half))
    return model.to(dtype).to(device)


def judge(package: Path, checkpoint: Path, name: str, args: argparse.Namespace) -> None:
    from qwen_export.package import open_package
    from qwen_export.runtime.engine import Engine
    from qwen_export.runtime.session import Device

    half, device = HALF[name], args.device
    truth, peer = load(checkpoint, torch.float32, half, device), load(checkpoint, half, half, device)
    engine = Engine(open_package(package), Device("cuda" if device == "cuda" else "cpu"))
    pool, _width = Pool(), engine.config.text.hidden_size
    for seed in range(args.seeds):
        generator = torch.Generator().manual_seed(seed)
        pieces = [int(torch.randint(2, 300, (1,), generator=generator)), 17, 1, 1, 1, 1]
        ids = torch.randint(0, engine.config.text.vocab_size - 64, (1, sum(pieces)), generator=generator).to(device)
        embeds = peer.model.language_model.embed_tokens(ids).detach()
        wanted, wanted_states = run_upstream(truth, embeds.float(), pieces)
        theirs, their_states = run_upstream(peer, embeds, pieces)
        ours, our_states = run_ours(engine, embeds, pieces, device)
        for x, y, z in zip(ours, theirs, wanted, strict=True):
            pool.add(["logits"], x, y, z)
        for key, value in wanted_states.items():
            pool.add([key.split(".")[1], key], our_states[key], their_states[key], value)
        patches = torch.randn(6 * 8 + 4 * 4, engine.config.vision.patch_width, generator=generator)
        grid = torch.tensor([[1, 6, 8], [1, 4, 4]])
        features = engine.graphs.run_to_host(
            "vision_encoder", {"pixel_values": patches.numpy(), "image_grid_thw": grid.numpy()}
        )["image_features"]
        mine = torch.from_numpy(features.view(np.int16)).view(torch.bfloat16) if name == "bf16" else None
        mine = torch.from_numpy(features) if mine is None else mine
        with torch.no_grad():
            reference, other = (
                m.model.visual(patches.to(device, m.dtype), grid_thw=grid.to(device)) for m in (truth, peer)
            )
        pick = lambda out: getattr(out, "pooler_output", None) if hasattr(out, "pooler_output") else out[-1]  # noqa: E731
        pool.add(["image_features"], mine.to(device), pick(other), pick(reference))
    ratios = pool.ratios()
    kinds = {k: v for k, v in ratios.items() if "." not in k}
    layers = {k: v for k, v in ratios.items() if "." in k}
    emit("error_ratio", max(kinds.values()), "ratio", dtype=name, package=package.name, kinds=kinds, layers=layers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--graphs", type=Path, nargs="+", required=True)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    from qwen_export.checkpoint.synth import synthesise
    from qwen_export.package import bind, open_package

    checkpoint = args.work / "checkpoint"
    if not checkpoint.exists():
        synthesise(checkpoint, json.loads((args.work / "config.json").read_text(encoding="utf-8")))
    for graphs in args.graphs:
        package = args.work / f"bound-{graphs.name}"
        if not package.exists():
            bind(graphs, checkpoint, package)
        name = open_package(package).recipe.dtype
        judge(package, checkpoint, name, args)


if __name__ == "__main__":
    main()
