"""Run a case through Transformers and through our graphs, each with its own cache, and compare call by call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from qwen_export.contract import DECODER, EMBEDDING, VISION_ENCODER, states
from qwen_export.recipe import Recipe
from qwen_export.runtime.positions import rope_positions, text_positions
from tests.bound_graph import Arrays, TinyGraphs, carried_on
from tests.parity.prompts import Case, Prompt, make_prompt
from tests.reference_decoder import ReferenceDecoder

MAX_ABS, RELATIVE_RMS = 5e-5, 1e-5


@dataclass
class Call:
    """What one call of the decoder took and gave. Arrays under the contract's output names."""

    embeds: np.ndarray
    mask: np.ndarray
    positions: np.ndarray
    outputs: Arrays


@dataclass
class Run:
    """A whole conversation."""

    prompt: Prompt
    calls: list[Call] = field(default_factory=list)
    features: np.ndarray | None = None
    tokens: list[np.ndarray] = field(default_factory=list)
    """The greedy tokens [B] of each step."""

    def decided(self, call: Call) -> np.ndarray:
        """Keep and return the next token of each row."""
        self.calls.append(call)
        return call.outputs["logits"][:, -1].argmax(-1)


def cuts(case: Case, length: int) -> list[tuple[int, int]]:
    """(start, stop) of each prefill slice."""
    ends = [int(end) for end in np.cumsum(case.slices)] + [length]
    return list(zip([0, *ends[:-1]], ends, strict=True))


class Upstream:
    """Transformers' model, eager, with its own cache, positions and placeholder filling."""

    def __init__(self, model: Any, graphs: TinyGraphs) -> None:
        self.model, self.config = model, graphs.config

    @torch.no_grad()
    def run(self, case: Case) -> Run:
        """Prefill and decode."""
        run = Run(prompt := make_prompt(case, self.config))
        positions, following = self.positions(prompt)
        embeds = self._fused(run)
        cache = DynamicCache(config=self.model.config.get_text_config())
        mask = prompt.mask
        for start, stop in cuts(case, mask.shape[1]):
            part = slice(start, stop)
            token = run.decided(self._call(embeds[:, part], mask[:, :stop], positions[:, :, part], cache))
        for _ in range(case.steps):
            run.tokens.append(token)
            mask = np.pad(mask, ((0, 0), (0, 1)), constant_values=1)
            embeds = self.model.get_input_embeddings()(torch.tensor(token)[:, None])
            token = run.decided(self._call(embeds, mask, text_positions(following, 1), cache))
            following = following + 1
        run.tokens.append(token)
        return run

    def positions(self, prompt: Prompt) -> tuple[np.ndarray, np.ndarray]:
        """Positions [3, B, S] and the next position of each row."""
        mask = torch.tensor(prompt.mask)
        grids = {kind: prompt.grids(kind) for kind in ("image", "video")}
        positions, deltas = self.model.model.get_rope_index(
            torch.tensor(prompt.ids),
            torch.tensor(prompt.types),
            *(None if grids[kind] is None else torch.tensor(grids[kind]) for kind in ("image", "video")),
            mask,
        )
        return positions.numpy(), (mask.sum(1) + deltas[:, 0]).numpy()

    def _fused(self, run: Run) -> torch.Tensor:
        """The embeddings that Transformers' own forward hands to its language model."""
        prompt, caught = run.prompt, {}
        media = {"pixel_values": prompt.pixels("image"), "image_grid_thw": prompt.grids("image")}
        media |= {"pixel_values_videos": prompt.pixels("video"), "video_grid_thw": prompt.grids("video")}
        given = {name: torch.tensor(value) for name, value in media.items() if value is not None}

        def catch(_module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
            caught.update(kwargs)

        hook = self.model.model.language_model.register_forward_pre_hook(catch, with_kwargs=True)
        try:
            out = self.model.model(
                input_ids=torch.tensor(prompt.ids),
                attention_mask=torch.tensor(prompt.mask),
                mm_token_type_ids=torch.tensor(prompt.types),
                use_cache=False,
                **given,
            )
        finally:
            hook.remove()
        if prompt.media:
            pools = {"image": out.image_outputs, "video": out.video_outputs}
            left = {kind: iter(pool.pooler_output) for kind, pool in pools.items() if pool is not None}
            run.features = torch.cat([next(left[media.kind]) for media, _ in prompt.media]).numpy()
        return caught["inputs_embeds"]

    def _call(self, embeds: torch.Tensor, mask: np.ndarray, positions: np.ndarray, cache: Any) -> Call:
        out = self.model(
            inputs_embeds=embeds,
            attention_mask=torch.tensor(mask),
            position_ids=torch.tensor(positions),
            cache=cache,
            use_cache=True,
        )
        outputs = {"logits": out.logits.numpy()}
        columns = self.config.text.linear_conv_kernel_dim - 1
        for state in states(self.config.text, "float32"):
            layer = cache.layers[state.layer]
            value = {
                "key": lambda layer=layer: layer.keys,
                "value": lambda layer=layer: layer.values,
                # upstream keeps one column more
                "conv_state": lambda layer=layer: layer.conv_states[0][..., -columns:],
                "recurrent_state": lambda layer=layer: layer.recurrent_states[0],
            }[state.kind]()
            outputs[state.present.name] = value.numpy().copy()
        return Call(embeds.numpy(), mask, positions, outputs)


class Ours:
    """The three graphs on ONNX Runtime's CPU provider, fed as the runtime feeds them."""

    def __init__(self, graphs: TinyGraphs, recipe: Recipe) -> None:
        self.graphs, self.recipe = graphs, recipe

    def run(self, case: Case, tokens: list[np.ndarray] | None = None) -> Run:
        """Prefill and decode greedily, or along the given tokens."""
        config = self.graphs.config
        run = Run(prompt := make_prompt(case, config))
        if prompt.media:
            positions, following = rope_positions(
                prompt.ids,
                config,
                image_grids=prompt.grids("image"),
                video_grids=prompt.grids("video"),
                mask=prompt.mask,
            )
        else:
            positions = np.broadcast_to(np.maximum(prompt.mask.cumsum(1) - 1, 0), (3, *prompt.mask.shape))
            following = prompt.mask.sum(1)
        run.features = np.zeros((0, config.text.hidden_size), np.float32)
        if prompt.media:
            vision = self.graphs.session(VISION_ENCODER, self.recipe)
            run.features = vision.run({"pixel_values": prompt.pixels(), "image_grid_thw": prompt.grids()})[
                "image_features"
            ]
        embeds = self._embed(prompt.ids, run.features)
        past, mask = self.graphs.empty_states(len(prompt.ids), self.recipe), prompt.mask
        for start, stop in cuts(case, mask.shape[1]):
            part = slice(start, stop)
            call = self._call(embeds[:, part], mask[:, :stop], positions[:, :, part], past)
            token, past = run.decided(call), carried_on(call.outputs)
        for step in range(case.steps):
            token = token if tokens is None else tokens[step]
            run.tokens.append(token)
            mask = np.pad(mask, ((0, 0), (0, 1)), constant_values=1)
            call = self._call(self._embed(token[:, None], run.features[:0]), mask, text_positions(following, 1), past)
            token, past, following = run.decided(call), carried_on(call.outputs), following + 1
        run.tokens.append(token)
        return run

    def _embed(self, ids: np.ndarray, features: np.ndarray) -> np.ndarray:
        session = self.graphs.session(EMBEDDING, self.recipe)
        return session.run({"input_ids": ids, "image_features": features})["inputs_embeds"]

    def _call(self, embeds: np.ndarray, mask: np.ndarray, positions: np.ndarray, past: Arrays) -> Call:
        feeds = {"inputs_embeds": embeds, "attention_mask": mask, "position_ids": positions}
        return Call(embeds, mask, positions, self.graphs.session(DECODER, self.recipe).run({**feeds, **past}))


@dataclass(frozen=True)
class Distance:
    """How far one tensor of one call is from the other model's."""

    name: str
    max_abs: float
    relative_rms: float

    @property
    def is_within(self) -> bool:
        """Whether both limits hold."""
        return self.max_abs <= MAX_ABS and self.relative_rms <= RELATIVE_RMS


def compare(run: Run, judge: Run) -> list[Distance]:
    """Every tensor of every call, at unmasked positions; conv and recurrent states whole."""
    found = []
    if run.prompt.media:
        assert run.features is not None and judge.features is not None
        found.append(_distance("image_features", run.features, judge.features))
    for number, (call, wanted) in enumerate(zip(run.calls, judge.calls, strict=True)):
        assert np.array_equal(call.mask, wanted.mask) and np.array_equal(call.positions, wanted.positions)
        pairs = {"inputs_embeds": (call.embeds, wanted.embeds)}
        pairs |= {name: (value, wanted.outputs[name]) for name, value in call.outputs.items()}
        for name, (got, truth) in pairs.items():
            assert np.isfinite(got).all(), f"call {number}: {name} is not finite"
            assert got.shape == truth.shape, f"call {number}: {name} has shape {got.shape}, not {truth.shape}"
            if not name.endswith("_state"):
                got, truth = _real(name, got, call.mask), _real(name, truth, call.mask)
            found.append(_distance(f"call {number}: {name}", got, truth))
    return found


def verdicts(run: Run, judge: Run, reference: ReferenceDecoder) -> str:
    """Who is wrong, in figures: the distance of both models' logits and states from the float64 decoder."""
    lines = []
    for number, (call, wanted) in enumerate(zip(run.calls, judge.calls, strict=True)):
        truth: Arrays = {"logits": reference(wanted.embeds, wanted.mask, wanted.positions)}
        truth |= {name: value.numpy() for name, value in reference.states.items()}
        for name, value in truth.items():
            pair = [
                _distance(name, _real(name, model.outputs[name], call.mask), _real(name, value, call.mask))
                for model in (call, wanted)
            ]
            if max(d.max_abs for d in pair) > MAX_ABS / 2:
                lines.append(f"call {number}: {name}: ours {pair[0].max_abs:.1e}, Transformers {pair[1].max_abs:.1e}")
    return "\n".join(lines)


def _real(name: str, value: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The rows of unmasked positions. KV [B, G, T, H]; logits and embeddings [B, S, *]."""
    if name.endswith("_state"):
        return value
    if name.endswith((".key", ".value")):
        return value.transpose(0, 2, 1, 3)[mask > 0]
    return value[mask[:, -value.shape[1] :] > 0]


def _distance(name: str, got: np.ndarray, truth: np.ndarray) -> Distance:
    if truth.size == 0:
        return Distance(name, 0.0, 0.0)
    error = got.astype(np.float64) - truth
    size = float(np.sqrt((truth.astype(np.float64) ** 2).mean()))
    # a state no token has touched is all zeros
    relative = float(np.sqrt((error**2).mean())) / size if size else float(np.abs(error).max())
    return Distance(name, float(np.abs(error).max()), relative)
