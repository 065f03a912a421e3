"""A small Gated DeltaNet layer as one custom operator, and its result in float64, token by token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch
import torch.nn.functional as F

from qwen_export.wrappers.decoder_operators import gated_delta_net, plan_step
from tests.passes.one_node import one_node
from tests.reference_decoder import delta_rule

KEY_HEADS, VALUE_HEADS, KEY_WIDTH, VALUE_WIDTH, KERNEL, EPS = 2, 4, 8, 12, 4, 1e-6
KEY_DIM, VALUE_DIM = KEY_HEADS * KEY_WIDTH, VALUE_HEADS * VALUE_WIDTH
CHANNELS = 2 * KEY_DIM + VALUE_DIM
OUTPUTS = ("out", "present_conv_state", "present_recurrent_state")

GATES = {
    # (-b, a): beta = sigmoid(b), decay = exp(-e^A_log softplus(a + dt_bias))
    "usual": (None, None),
    "write all, forget nothing": (-40.0, -60.0),
    "write nothing": (60.0, None),
    "forget all": (None, 60.0),
    "any extreme": ("signs", "signs"),
    "now and then forget all": (None, "some"),
}
KEYS = ("random", "correlated", "identical")


def layer_model(dtype: str = "float32") -> ir.Model:
    """The custom operator alone."""
    inputs = {
        "qkv": (dtype, ("batch", "sequence", CHANNELS)),
        "zba": (dtype, ("batch", "sequence", VALUE_DIM + 2 * VALUE_HEADS)),
        "conv_state": (dtype, ("batch", CHANNELS, KERNEL - 1)),
        "recurrent_state": ("float32", ("batch", VALUE_HEADS, KEY_WIDTH, VALUE_WIDTH)),
        "single_step": ("bool", ()),
        "token_mask": (dtype, ("batch", "sequence", 1)),
        "chunk_index": ("int64", ("slots",)),
        "chunk_mask": ("float32", ("batch", "slots", 1)),
        "conv_weight": ("float32", (CHANNELS, KERNEL)),
        "gate_bias": ("float32", (2 * VALUE_HEADS,)),
        "gate_scale": ("float32", (2 * VALUE_HEADS,)),
        "norm_weight": ("float32", (VALUE_WIDTH,)),
    }
    attributes = {"key_heads": KEY_HEADS, "value_heads": VALUE_HEADS, "eps": EPS}
    return one_node("gated_delta_net", inputs, attributes, dict(zip(OUTPUTS, (dtype, dtype, "float32"), strict=True)))


@dataclass(frozen=True)
class Case:
    """Tokens with a character of their own."""

    length: int
    keys: str = "random"
    gates: str = "usual"
    pads: tuple[int, ...] = (0, 0)
    fresh: bool = False
    """Whether the states are empty."""
    seed: int = 0

    def feeds(self, chunk: int) -> dict[str, np.ndarray]:
        """Inputs of the operator."""
        rng, batch = np.random.default_rng(self.seed), len(self.pads)
        normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
        qkv = normal(batch, self.length, CHANNELS)
        if self.keys != "random":
            spread = 0.0 if self.keys == "identical" else 0.1
            qkv[..., : 2 * KEY_DIM] = normal(batch, 1, 2 * KEY_DIM) + spread * qkv[..., : 2 * KEY_DIM]
        zba = normal(batch, self.length, VALUE_DIM + 2 * VALUE_HEADS)
        for start, value in zip((VALUE_DIM, VALUE_DIM + VALUE_HEADS), GATES[self.gates], strict=True):
            part = zba[..., start : start + VALUE_HEADS]
            if value == "signs":
                part[:] = np.where(rng.random(part.shape) < 0.5, 30.0, -30.0)
            elif value == "some":
                part[rng.random(part.shape) < 0.1] = 60.0
            elif value is not None:
                part[:] = value
        mask = np.ones((batch, self.length), np.int64)
        for row, pad in enumerate(self.pads):
            mask[row, :pad] = 0
        conv, state = normal(batch, CHANNELS, KERNEL - 1), normal(batch, VALUE_HEADS, KEY_WIDTH, VALUE_WIDTH)
        empty = np.array([self.fresh or pad > 0 for pad in self.pads])
        conv[empty], state[empty] = 0, 0
        plan = plan_step(torch.zeros(batch, self.length, 1), torch.tensor(mask), chunk, 0)
        zeros = np.zeros(VALUE_HEADS, np.float32)
        return {
            "qkv": qkv,
            "zba": zba,
            "conv_state": conv,
            "recurrent_state": state,
            **dict(
                zip(("single_step", "token_mask", "chunk_index", "chunk_mask"), (p.numpy() for p in plan), strict=False)
            ),
            "conv_weight": (normal(CHANNELS, KERNEL) * 0.3 + [0, 0, 0, 1]).astype(np.float32),
            "gate_bias": np.concatenate([zeros, normal(VALUE_HEADS) - 3]),
            "gate_scale": np.concatenate([zeros - 1, -np.exp(normal(VALUE_HEADS))]),
            "norm_weight": 1 + 0.2 * normal(VALUE_WIDTH),
        }


def plain_loop(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The three outputs in float64."""
    x = {name: torch.tensor(value).double() for name, value in feeds.items()}
    window = torch.cat([x["conv_state"], (x["qkv"] * x["token_mask"]).transpose(1, 2)], 2)
    mixed = F.silu(F.conv1d(window, x["conv_weight"][:, None], groups=CHANNELS)).transpose(1, 2)
    query, key, value = mixed.split([KEY_DIM, KEY_DIM, VALUE_DIM], -1)
    query, key = (
        (h * torch.rsqrt((h * h).sum(-1, keepdim=True) + 1e-6)).repeat_interleave(VALUE_HEADS // KEY_HEADS, 2)
        for h in (query.unflatten(-1, (KEY_HEADS, -1)), key.unflatten(-1, (KEY_HEADS, -1)))
    )
    z, minus_b, a = x["zba"].split([VALUE_DIM, VALUE_HEADS, VALUE_HEADS], -1)
    beta = (-minus_b).sigmoid() * x["token_mask"]
    decay = (x["gate_scale"][VALUE_HEADS:] * F.softplus(a + x["gate_bias"][VALUE_HEADS:])).exp()
    # a pad neither writes nor forgets
    decay = torch.where(x["token_mask"] > 0, decay, 1.0)
    value = value.unflatten(-1, (VALUE_HEADS, -1))
    out, state = delta_rule(query * KEY_WIDTH**-0.5, key, value, beta, decay, x["recurrent_state"])
    out = out * torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + EPS) * x["norm_weight"]
    out = out.flatten(2) * F.silu(z)
    results = (out, window[:, :, -(KERNEL - 1) :], state)
    return {name: value.numpy() for name, value in zip(OUTPUTS, results, strict=True)}


def float32_loop(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same loop in float32: how far rounding alone leads where a result is nearly cancelled and then normalised."""
    args = [torch.tensor(value) for value in feeds.values()]
    results = gated_delta_net(*args, KEY_HEADS, VALUE_HEADS, EPS)
    return {name: value.numpy() for name, value in zip(OUTPUTS, results, strict=True)}
