"""What the truth looks like inside the layers: inputs and outputs of upstream's modules, for a few short calls.

The labels are those of `bisect_points`; upstream's separate projections are arranged as the package stores them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qwen_export.model_config import LINEAR_ATTENTION
from qwen_export.package import Package
from qwen_export.runtime.preprocess import IMAGE
from qwen_export.verify.bisect_points import CALLS, QUIET, QUIET_VISION_CALL, QUIETED, VISION_CALL
from qwen_export.verify.cases import Case, CaseMaker, Plan
from qwen_export.verify.reference import ReferenceModel, Tensors, run_case, to_array
from qwen_export.verify.reference_file import INSIDE, ReferenceWriter


def note_inside(model: ReferenceModel, writer: ReferenceWriter, package: Package) -> None:
    """Run the calls on the truth and write everything `bisect` compares."""
    text = model.config.text
    rng = np.random.default_rng(0)
    caches: dict[str, Any] = {}
    masks: dict[str, np.ndarray] = {}
    for call in CALLS:
        length = max(call.rows)
        ids = rng.integers(0, text.vocab_size // 2, size=(len(call.rows), length))
        mask = np.array([[0] * (length - n) + [1] * n for n in call.rows])
        cache = caches[call.after] if call.after else model.new_cache()
        mask = np.concatenate([masks[call.after], mask], axis=1) if call.after else mask
        caches[call.name], masks[call.name] = cache, mask
        positions = np.maximum(mask.cumsum(1) - 1, 0)[:, -length:]
        # the three axes differ, as they do behind a picture
        positions = positions + np.arange(3)[:, None, None] * 2
        watch = _decoder_watch(model, call.quiet)
        with model.watched(watch.hooks):
            got = model.forward(ids, mask, positions, cache, {})
        found = _decoder_tensors(model, watch.raw, got)
        found.update({"input_ids": ids, "attention_mask": mask, "position_ids": positions})
        found.update({f"layers.{name}": value for name, value in model.states(cache).items()})
        for name, array in found.items():
            writer.add(INSIDE, call.name, name, array)
    if model.visual is not None:
        plan = Plan("bisect", ("text 2, image 160x96, text 3, image 96x224, text 2",), steps=0)
        case = CaseMaker(package.config, package.folder).make(plan, 0)
        for name, quiet in ((VISION_CALL, False), (QUIET_VISION_CALL, True)):
            for label, array in _vision_tensors(model, case, quiet).items():
                writer.add(INSIDE, name, label, array)


class _Watch:
    """Forward hooks that note module outputs under labels, and scale some of them down in a quiet call."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.raw: Tensors = {}
        self.hooks: list[Any] = []

    def output(self, label: str, module: Any, scaled_as: str = "") -> None:
        """Args: scaled_as: the label that decides whether it is quieted, where upstream has several for one of ours."""

        def note(module: Any, args: tuple[Any, ...], out: Any) -> Any:
            self.raw[label] = to_array(out)
            return out * QUIET if self.quiet and (scaled_as or label.rsplit(".", 1)[-1]) in QUIETED else None

        self.hooks.append((module, note))

    def source(self, label: str, module: Any) -> None:
        """Note what a module reads."""

        def note(module: Any, args: tuple[Any, ...], out: Any) -> None:
            self.raw[label] = to_array(args[0])

        self.hooks.append((module, note))

    def angles(self, module: Any) -> None:
        """Note cos and sin; upstream repeats them for both halves of a head."""

        def note(module: Any, args: tuple[Any, ...], out: Any) -> None:
            for name, value in zip(("cos", "sin"), out, strict=True):
                self.raw[f"prelude.{name}"] = to_array(value[..., : value.shape[-1] // 2])

        self.hooks.append((module, note))


def _decoder_watch(model: ReferenceModel, quiet: bool) -> _Watch:
    text, watch = model.config.text, _Watch(quiet)
    watch.output("prelude.hidden", model.language.embed_tokens)
    watch.angles(model.language.rotary_emb)
    for index, layer in enumerate(model.language.layers):
        at, linear = f"layers.{index}.", text.layer_types[index] == LINEAR_ATTENTION
        mixer, last = (layer.linear_attn, "out_proj") if linear else (layer.self_attn, "o_proj")
        watch.output(at + "input_layernorm", layer.input_layernorm)
        inputs = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a") if linear else ("q_proj", "k_proj", "v_proj")
        for name in inputs:
            watch.output(at + name, getattr(mixer, name), scaled_as="" if linear else "in_proj")
        watch.source(at + "mixer", getattr(mixer, last))
        watch.output(at + last, getattr(mixer, last))
        watch.output(at + "post_attention_layernorm", layer.post_attention_layernorm)
        for name in ("gate_proj", "up_proj"):
            watch.output(at + name, getattr(layer.mlp, name))
        watch.source(at + "mlp_product", layer.mlp.down_proj)
        watch.output(at + "down_proj", layer.mlp.down_proj)
    watch.output("head.norm", model.language.norm)
    return watch


def _decoder_tensors(model: ReferenceModel, raw: Tensors, got: Tensors) -> Tensors:
    """Upstream's projections as the package stores them: one product for several."""
    text = model.config.text
    for index, kind in enumerate(text.layer_types):
        at = f"layers.{index}."
        raw[at + "output"] = got[f"hidden/{index}"]
        if kind == LINEAR_ATTENTION:
            parts = [raw.pop(at + "in_proj_z"), -raw.pop(at + "in_proj_b"), raw.pop(at + "in_proj_a")]
            raw[at + "in_proj_zba"] = np.concatenate(parts, axis=-1)
            continue
        both = raw.pop(at + "q_proj")
        both = both.reshape(*both.shape[:2], text.num_attention_heads, 2, text.head_dim)
        query, gate = (both[:, :, :, i].reshape(*both.shape[:2], -1) for i in range(2))
        raw[at + "in_proj"] = np.concatenate([query, raw.pop(at + "k_proj"), raw.pop(at + "v_proj"), gate], axis=-1)
    return {**raw, "inputs_embeds": raw["prelude.hidden"], "logits": got["logits"]}


def _vision_tensors(model: ReferenceModel, case: Case, quiet: bool) -> Tensors:
    visual: Any = model.visual
    watch = _Watch(quiet)
    watch.angles(visual.rotary_pos_emb)
    watch.output("prelude.patch_embed", visual.patch_embed)
    for index, block in enumerate(visual.blocks):
        at = f"blocks.{index}."
        watch.output(at + "norm1", block.norm1)
        watch.output(at + "attn_qkv", block.attn.qkv)
        watch.source(at + "attention", block.attn.proj)
        watch.output(at + "attn_proj", block.attn.proj)
        watch.output(at + "norm2", block.norm2)
        watch.output(at + "mlp_fc1", block.mlp.linear_fc1)
        watch.source(at + "gelu", block.mlp.linear_fc2)
        watch.output(at + "mlp_fc2", block.mlp.linear_fc2)
        watch.output(at + "output", block)
    watch.source("merger.norm", visual.merger.linear_fc1)
    watch.output("merger.fc1", visual.merger.linear_fc1)
    watch.source("merger.gelu", visual.merger.linear_fc2)

    def first(module: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        watch.raw["prelude.hidden"] = to_array(args[0])
        return (args[0] * QUIET, *args[1:]) if quiet else None

    handle = visual.blocks[0].register_forward_pre_hook(first)
    try:
        with model.watched(watch.hooks):
            got = run_case(model, case)
    finally:
        handle.remove()
    given = {
        "pixel_values": np.concatenate([item.pixel_values for item in case.media]),
        "image_grid_thw": case.grids(IMAGE),
        "input_ids": case.input_ids,
    }
    return {**watch.raw, **given, "image_features": got["image_features"], "inputs_embeds": got["inputs_embeds"]}
