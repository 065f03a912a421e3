"""The reference: Transformers' own model, layer by layer through accelerate.

It is run twice. The truth is Transformers on exactly the weight values that the package stores, in float32 for a half
package and in float64 for an fp32 one, where Transformers' own float32 rounding would be as large as ours. The peer is
Transformers in the package's own dtype, as everybody compares with: every weight in that dtype, `A_log` and the norms
too. Eager attention in both. Only this module and `reference_weights` import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from qwen_export.checkpoint import Snapshot
from qwen_export.contract import states
from qwen_export.errors import UsageError
from qwen_export.runtime.preprocess import IMAGE, VIDEO
from qwen_export.verify.cases import Case, sampled_rows
from qwen_export.verify.reference_weights import ReferenceWeights

Tensors = dict[str, np.ndarray]
Note = Callable[[Any, tuple[Any, ...], Any], None]
"""A forward hook: module, its positional inputs, its output."""


class InDouble(TorchFunctionMode):
    """Runs upstream's float32 islands (norms, softmax, the delta rule) in float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.Tensor.float:
            return args[0].double()
        return func(
            *(torch.float64 if value is torch.float32 else value for value in args),
            **{key: torch.float64 if value is torch.float32 else value for key, value in (kwargs or {}).items()},
        )


class ReferenceModel:
    """Transformers' model of one checkpoint in one dtype; its weights come as its layers need them.

    Attributes:
        language: Transformers' text model. visual: its vision model, None for a text-only checkpoint.
    """

    def __init__(self, snapshot: Snapshot, dtype: str, rounded: Mapping[str, str], budget: int | None = None) -> None:
        """Args:
        dtype: tensor dtype of weights and activations.
        rounded: `stored_rounding` for the truth, nothing for the peer.
        budget: bytes that weights may take; by default a share of what is free where it computes: the GPU if any.
        """
        self.config = snapshot.config
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.is_double = dtype == "float64"
        self.model = _without_weights(snapshot, getattr(torch, dtype))
        is_text = self.config.vision is None
        self.language = self.model.model if is_text else self.model.model.language_model
        self.visual = None if is_text else self.model.model.visual
        _attach(self.model, ReferenceWeights(snapshot, getattr(torch, dtype), rounded, budget), self.device, is_text)

    @contextmanager
    def watched(self, hooks: Sequence[tuple[torch.nn.Module, Note]]) -> Iterator[None]:
        """Forward hooks on modules, for the time of a `with`."""
        handles = [module.register_forward_hook(note) for module, note in hooks]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def new_cache(self) -> Any:
        """Transformers' cache before the first token."""
        from transformers import DynamicCache

        return DynamicCache(config=self.model.config.get_text_config())

    @torch.no_grad()
    def forward(
        self, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray, cache: Any, media: Mapping[str, np.ndarray]
    ) -> Tensors:
        """One call of the whole model.

        Args:
            positions: [3, B, S]. media: Transformers' pixel and grid arguments, on the call that holds placeholders.

        Returns:
            `logits` [B, S, V], `inputs_embeds` and `hidden/N` [B, S, D]; with media also `image_features` [F, D] and
            `vision/N` [R, C], images before videos.
        """
        got: Tensors = {}

        def keep(name: str, value: torch.Tensor) -> None:
            array = to_array(value)
            got[name] = np.concatenate([got[name], array]) if name in got else array

        def output(name: str) -> Note:
            return lambda module, args, out: keep(name, out[0] if isinstance(out, tuple) else out)

        hooks: list[tuple[torch.nn.Module, Note]] = []
        hooks += [(layer, output(f"hidden/{i}")) for i, layer in enumerate(self.language.layers)]
        hooks.append((self.language.layers[0], lambda module, args, out: keep("inputs_embeds", args[0])))
        if media and self.visual is not None:
            hooks += [(block, output(f"vision/{i}")) for i, block in enumerate(self.visual.blocks)]
            hooks.append((self.visual.merger, output("image_features")))
        given = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, **media}
        with self.watched(hooks), InDouble() if self.is_double else nullcontext():
            tensors = {k: torch.from_numpy(np.ascontiguousarray(v)).to(self.device) for k, v in given.items()}
            out = self.model(**tensors, cache=cache, use_cache=True)
        got["logits"] = to_array(out.logits)
        return got

    def states(self, cache: Any) -> Tensors:
        """Every state as the contract has it, by `layer.kind`."""
        out = {}
        for spec in states(self.config.text, "float32"):
            layer = cache.layers[spec.layer]
            if spec.kind == "key":
                value = layer.keys
            elif spec.kind == "value":
                value = layer.values
            elif spec.kind == "conv_state":
                # upstream keeps one column more than the convolution reads
                value = layer.conv_states[0][..., 1 - self.config.text.linear_conv_kernel_dim :]
            else:
                value = layer.recurrent_states[0]
            out[f"{spec.layer}.{spec.kind}"] = to_array(value)
        return out


def run_case(model: ReferenceModel, case: Case, tokens: np.ndarray | None = None) -> Tensors:
    """Everything that is compared of one case, by name.

    Args: tokens: [B, steps], what to feed in the decode steps; by default the model's own greedy choice.

    Returns:
        `image_features`, `vision/N` (sampled rows), `inputs_embeds` [B, S + steps, D], `positions` [3, B, S + steps],
        `logits` and `hidden/N` at the case's positions, `prompt/N.KIND` and `end/N.KIND` states, and of the decode
        steps `step_logits`, `tokens` and `margins` [B, steps].
    """
    positions, following = upstream_positions(model, case)
    cache, mask = model.new_cache(), case.mask
    ahead = following[:, None] + np.arange(case.steps)
    out: Tensors = {"positions": np.concatenate([positions, np.broadcast_to(ahead, (3, *ahead.shape))], axis=2)}
    parts: dict[str, list[np.ndarray]] = {}
    done, got = 0, {}
    for index, length in enumerate(case.slices):
        part = slice(done, done + length)
        media = _media_arguments(case) if index == 0 else {}
        got = model.forward(case.input_ids[:, part], mask[:, : part.stop], positions[:, :, part], cache, media)
        local = [p - done for p in case.positions if part.start <= p < part.stop]
        for name, value in got.items():
            if name == "image_features" or name.startswith("vision/"):
                value = _in_placeholder_order(value, case, model.config.vision)
                out[name] = value if name == "image_features" else value[sampled_rows(len(value))]
            else:
                parts.setdefault(name, []).append(value if name == "inputs_embeds" else value[:, local])
        done += length
    out.update({f"prompt/{name}": value for name, value in model.states(cache).items()})
    chosen, margins, steps = [], [], []
    for step in range(case.steps):
        token, margin = best(got["logits"][:, -1])
        chosen.append(token if tokens is None else tokens[:, step])
        margins.append(margin)
        mask = np.concatenate([mask, np.ones((len(mask), 1), np.int64)], axis=1)
        where = out["positions"][:, :, case.length + step : case.length + step + 1]
        got = model.forward(chosen[-1][:, None], mask, where, cache, {})
        parts["inputs_embeds"].append(got["inputs_embeds"])
        steps.append(got["logits"][:, -1:])
    out.update({name: np.concatenate(values, axis=1) for name, values in parts.items()})
    if steps:
        out["step_logits"] = np.concatenate(steps, axis=1)
        out["tokens"], out["margins"] = np.stack(chosen, axis=1), np.stack(margins, axis=1)
        out.update({f"end/{name}": value for name, value in model.states(cache).items()})
    return out


def upstream_positions(model: ReferenceModel, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Transformers' own positions: [3, B, S], and each row's next one [B]."""
    if model.visual is None:
        positions = np.maximum(case.mask.cumsum(1) - 1, 0)
        return np.broadcast_to(positions, (3, *positions.shape)).copy(), case.mask.sum(1)
    config = model.config
    kinds = np.select([case.input_ids == config.image_token_id, case.input_ids == config.video_token_id], [1, 2], 0)
    images, videos = (torch.from_numpy(case.grids(kind)) for kind in (IMAGE, VIDEO))
    positions, deltas = model.model.model.get_rope_index(
        torch.from_numpy(case.input_ids),
        torch.from_numpy(kinds),
        images if len(images) else None,
        videos if len(videos) else None,
        torch.from_numpy(case.mask),
    )
    return positions.numpy(), deltas.numpy()[:, 0] + case.mask.sum(1)


def best(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Greedy token and its lead over the second best, both [B], of logits [B, V]."""
    top = np.partition(logits.astype(np.float32), -2, axis=-1)[:, -2:]
    return logits.argmax(-1).astype(np.int64), top[:, 1] - top[:, 0]


def to_array(value: torch.Tensor) -> np.ndarray:
    """A copy on the host; bfloat16 and float64 as float32."""
    value = value.detach().to("cpu", copy=True)  # a cache is written in place at the next step
    if value.dtype == torch.bfloat16:
        value = value.float()
    array = value.numpy()
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _media_arguments(case: Case) -> Tensors:
    found = {}
    for kind, pixels, grid in (
        (IMAGE, "pixel_values", "image_grid_thw"),
        (VIDEO, "pixel_values_videos", "video_grid_thw"),
    ):
        rows = [item.pixel_values for item in case.media if item.kind == kind]
        if rows:
            found[pixels], found[grid] = np.concatenate(rows), case.grids(kind)
    return found


def _in_placeholder_order(values: np.ndarray, case: Case, vision: Any) -> np.ndarray:
    """Rows of all images, then of all videos, put into the order of the prompt."""
    order = sorted(range(len(case.media)), key=lambda i: case.media[i].kind != IMAGE)
    total = sum(int(np.prod(item.grid)) for item in case.media)
    unit = vision.merge_unit if len(values) * vision.merge_unit == total else 1
    counts = [int(np.prod(case.media[i].grid)) // unit for i in order]
    blocks = dict(zip(order, np.split(values, np.cumsum(counts)[:-1]), strict=True))
    return np.concatenate([blocks[i] for i in range(len(case.media))])


def _without_weights(snapshot: Snapshot, dtype: torch.dtype) -> Any:
    try:
        from accelerate import init_empty_weights
        from transformers import Qwen3_5ForConditionalGeneration
        from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5Config, Qwen3_5TextConfig
        from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM
    except ImportError as error:
        raise UsageError(
            f"The reference needs torch, accelerate and a Transformers that knows qwen3_5 ({error}): pip install "
            "'qwen-export[export]'. Or compare with a saved one: --reference FILE."
        ) from None
    config: Any
    kind: Any
    raw = {key: value for key, value in snapshot.config.raw.items() if key != "model_type"}
    if snapshot.config.vision is None:
        text = raw.get("text_config", raw)
        config, kind = Qwen3_5TextConfig(**{k: v for k, v in text.items() if k != "model_type"}), Qwen3_5ForCausalLM
    else:
        config, kind = Qwen3_5Config(**raw), Qwen3_5ForConditionalGeneration
    config.tie_word_embeddings = False  # each is given its own tensor; a tied pair reads the same bytes
    with init_empty_weights():
        return kind._from_config(config, attn_implementation="eager", dtype=dtype).eval()


def _attach(model: Any, weights: ReferenceWeights, device: torch.device, is_text: bool) -> None:
    """Give the model its weights: all at once where they fit, else each layer's as it runs."""
    from accelerate import cpu_offload
    from accelerate.utils import set_module_tensor_to_device

    parameters = dict(model.named_parameters())
    weights.named(set(parameters), is_text)
    for owner in model.modules():
        for name, buffer in owner.named_buffers(recurse=False):
            setattr(owner, name, buffer.to(device))
    needed = sum(p.numel() * p.element_size() for p in parameters.values())
    if needed <= weights.budget(device):
        for name in parameters:
            set_module_tensor_to_device(model, name, device, value=weights[name])
    else:
        cpu_offload(model, execution_device=device, state_dict=weights)
