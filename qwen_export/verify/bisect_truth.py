"""What the truth looks like inside the layers: inputs and outputs of upstream's modules, for a few short calls.

The labels are those of `bisect_points`; upstream's separate projections are arranged as the package stores them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qwen_export.model_config import LINEAR_ATTENTION, TextConfig
from qwen_export.package import Package
from qwen_export.runtime.preprocess import IMAGE
from qwen_export.verify.bisect_points import CALLS, INSIDE, VISION_CALL
from qwen_export.verify.cases import Case, CaseMaker, Plan
from qwen_export.verify.reference import ReferenceModel, Tensors, run_case, to_array, upstream_positions
from qwen_export.verify.reference_file import ReferenceWriter


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
        positions = np.maximum(mask.cumsum(1) - 1, 0)[:, -length:] * np.array([1, 1, 1])[:, None, None]
        # the three axes differ, as they do behind a picture
        positions = positions + np.arange(3)[:, None, None] * 2
        got = _watched(model, text, lambda c=cache, i=ids, m=mask, p=positions: model.forward(i, m, p, c, {}))  # type: ignore[misc]
        got.update({"input_ids": ids, "attention_mask": mask, "position_ids": positions})
        got.update({f"layers.{name}": value for name, value in model.states(cache).items()})
        for name, array in got.items():
            writer.add(INSIDE, call.name, name, array)
    if model.visual is not None:
        case = _pictures(package)
        for name, array in _vision(model, case).items():
            writer.add(INSIDE, VISION_CALL, name, array)


def _pictures(package: Package) -> Case:
    plan = Plan("bisect", ("text 2, image 160x96, text 3, image 96x224, text 2",), steps=0)
    return CaseMaker(package.config, package.folder).make(plan, 0)


def _watched(model: ReferenceModel, text: TextConfig, run: Callable[[], Tensors]) -> Tensors:
    raw: dict[str, np.ndarray] = {}
    hooks: list[Any] = []

    def watch(name: str, module: Any, *, source: bool = False) -> None:
        def note(module: Any, args: tuple[Any, ...], out: Any) -> None:
            raw[name] = to_array(args[0] if source else out)

        hooks.append((module, note))

    for index, layer in enumerate(model.language.layers):
        at = f"layers.{index}."
        watch(at + "input_layernorm", layer.input_layernorm)
        watch(at + "post_attention_layernorm", layer.post_attention_layernorm)
        for name in ("gate_proj", "up_proj", "down_proj"):
            watch(at + name, getattr(layer.mlp, name))
        watch(at + "mlp_product", layer.mlp.down_proj, source=True)
        mixer = layer.linear_attn if text.layer_types[index] == LINEAR_ATTENTION else layer.self_attn
        last = "out_proj" if text.layer_types[index] == LINEAR_ATTENTION else "o_proj"
        for name, module in mixer.named_children():
            if name.endswith("_proj") or name.startswith("in_proj"):
                watch(at + name, module)
        watch(at + "mixer", getattr(mixer, last), source=True)
    watch("head.norm", model.language.norm)
    hooks.append((model.language.rotary_emb, _angles(raw)))
    with model.watched(hooks):
        got = run()
    for index, kind in enumerate(text.layer_types):
        _arrange(raw, f"layers.{index}.", kind, text)
        raw[f"layers.{index}.output"] = got[f"hidden/{index}"]
    embeds = got["inputs_embeds"]
    return {**raw, "prelude.hidden": embeds, "inputs_embeds": embeds, "logits": got["logits"]}


def _arrange(raw: dict[str, np.ndarray], at: str, kind: str, text: TextConfig) -> None:
    """Upstream's projections as the package stores them: one product for several."""
    if kind == LINEAR_ATTENTION:
        parts = [raw.pop(at + "in_proj_z"), -raw.pop(at + "in_proj_b"), raw.pop(at + "in_proj_a")]
        raw[at + "in_proj_zba"] = np.concatenate(parts, axis=-1)
        return
    both = raw.pop(at + "q_proj")
    both = both.reshape(*both.shape[:2], text.num_attention_heads, 2, text.head_dim)
    query, gate = (both[:, :, :, i].reshape(*both.shape[:2], -1) for i in range(2))
    raw[at + "in_proj"] = np.concatenate([query, raw.pop(at + "k_proj"), raw.pop(at + "v_proj"), gate], axis=-1)


def _angles(raw: dict[str, np.ndarray]) -> Callable[[Any, Any, Any], None]:
    """Notes cos and sin; upstream repeats them for both halves of a head."""

    def note(module: Any, args: tuple[Any, ...], out: Any) -> None:
        for name, value in zip(("cos", "sin"), out, strict=True):
            raw[f"prelude.{name}"] = to_array(value[..., : value.shape[-1] // 2])

    return note


def _vision(model: ReferenceModel, case: Case) -> dict[str, np.ndarray]:
    raw: dict[str, np.ndarray] = {}
    hooks: list[Any] = []
    visual: Any = model.visual

    def watch(name: str, module: Any, *, source: bool = False) -> None:
        def note(module: Any, args: tuple[Any, ...], out: Any) -> None:
            raw[name] = to_array(args[0] if source else out)

        hooks.append((module, note))

    hooks.append((visual.rotary_pos_emb, _angles(raw)))
    watch("prelude.patch_embed", visual.patch_embed)
    watch("prelude.hidden", visual.blocks[0], source=True)
    for index, block in enumerate(visual.blocks):
        at = f"blocks.{index}."
        watch(at + "norm1", block.norm1)
        watch(at + "norm2", block.norm2)
        watch(at + "attn_qkv", block.attn.qkv)
        watch(at + "attention", block.attn.proj, source=True)
        watch(at + "attn_proj", block.attn.proj)
        watch(at + "mlp_fc1", block.mlp.linear_fc1)
        watch(at + "gelu", block.mlp.linear_fc2, source=True)
        watch(at + "mlp_fc2", block.mlp.linear_fc2)
        watch(at + "output", block)
    watch("merger.norm", visual.merger.linear_fc1, source=True)
    watch("merger.fc1", visual.merger.linear_fc1)
    watch("merger.gelu", visual.merger.linear_fc2, source=True)
    with model.watched(hooks):
        got = run_case(model, case)
    raw["pixel_values"] = np.concatenate([item.pixel_values for item in case.media])
    raw["image_grid_thw"] = case.grids(IMAGE)
    return {**raw, "image_features": got["image_features"], "input_ids": case.input_ids,
            "inputs_embeds": got["inputs_embeds"], "positions": upstream_positions(model, case)[0]}  # fmt: skip
