"""Places inside a graph where it can be compared with Transformers: around every weight, and at every layer's end.

A place is found by the weight next to it, so it does not depend on how nodes are named or counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx

from qwen_export.verify.layer_outputs import layer_of, layer_outputs, reads

AROUND = {
    "in_proj_qkv": ("input_layernorm", "in_proj_qkv"),
    "in_proj_zba": (None, "in_proj_zba"),
    "in_proj": ("input_layernorm", "in_proj"),
    "out_proj": ("mixer", "out_proj"),
    "o_proj": ("mixer", "o_proj"),
    "gate_proj": ("post_attention_layernorm", "gate_proj"),
    "up_proj": (None, "up_proj"),
    "down_proj": ("mlp_product", "down_proj"),
    "attn_qkv_weight": ("norm1", "attn_qkv"),
    "attn_proj_weight": ("attention", "attn_proj"),
    "mlp_linear_fc1_weight": ("norm2", "mlp_fc1"),
    "mlp_linear_fc2_weight": ("gelu", "mlp_fc2"),
    "patch_embed_proj_weight": (None, "patch_embed"),
    "linear_fc1_weight": ("norm", "fc1"),
    "linear_fc2_weight": ("gelu", "fc2"),
    "lm_head": ("norm", None),
}
"""Last part of a weight's name -> what its product reads, and what it gives. None where another weight tells it."""
MOVES = frozenset(
    (
        *("Cast", "Concat", "Expand", "Identity", "Reshape", "Shape", "Slice", "Split", "Squeeze"),
        *("Transpose", "Unsqueeze"),
    )
)
"""Operators that compute nothing: named only where nothing else is."""


VISION_CALL, QUIET_VISION_CALL = "pictures", "quiet-pictures"


@dataclass(frozen=True)
class Call:
    """One call of the decoder."""

    name: str
    rows: tuple[int, ...]
    """Tokens of each row; shorter ones are padded on the left."""
    after: str | None = None
    """The call whose states it continues."""
    quiet: bool = False
    """What `QUIETED` names is scaled down by `QUIET` before it goes on."""


CALLS = (
    Call("prompt", (70,)),
    Call("slice", (9,), after="prompt"),
    Call("step", (1,), after="slice"),
    Call("padded", (20, 13)),
    Call("quiet", (20,), quiet=True),
    Call("quiet-step", (1,), after="quiet", quiet=True),
)
"""Every branch of the graph: chunks from empty states, chunks on carried states, a single step, and padding; then
quiet ones, for the epsilons: every norm is given numbers so small that its epsilon counts."""
QUIET = 1 / 128
QUIETED = frozenset(
    ("hidden", "in_proj_qkv", "in_proj", "out_proj", "o_proj", "down_proj", "attn_qkv", "attn_proj", "mlp_fc2")
)
"""Last part of the names of what is scaled: the residual stream, all that joins it, and what inner norms read."""


@dataclass(frozen=True)
class Point:
    """One place of comparison."""

    truth: str
    """Name in the reference, for instance `layers.2.gate_proj`."""
    value: str
    """Name of the value in the graph."""


def stage_of(node: onnx.NodeProto) -> str:
    """`layers.3`, `blocks.1`, `prelude`, `head` or `merger`; `embedding` for a graph of one stage."""
    parts = node.name.split(".")
    return ".".join(parts[:2]) if layer_of(node) is not None else (parts[0] if len(parts) > 1 else "embedding")


def stages_of(graph: onnx.GraphProto) -> dict[str, list[onnx.NodeProto]]:
    """Nodes by stage, in order."""
    found: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        found.setdefault(stage_of(node), []).append(node)
    return found


def points_of(graph: onnx.GraphProto, stage: str, nodes: Sequence[onnx.NodeProto]) -> list[Point]:
    """The places of one stage, in the order in which they are computed."""
    found: dict[str, str] = {}
    weights = {tensor.name for tensor in graph.initializer}
    for node in nodes:
        for name in (name for name in node.input if name in weights):
            before, after = AROUND.get(name.rsplit(".", 1)[-1], (None, None))
            if before:
                found.setdefault(node.input[0], f"{stage}.{before}")
            if after:
                found.setdefault(node.output[0], f"{stage}.{after}")
    if stage == "prelude":
        found.update(_prelude_points(graph))
    made = {name: index for index, node in enumerate(nodes) for name in node.output}
    for value in graph.output:
        if value.name in made:
            label = f"{stage}.{value.name.rsplit('.', 1)[-1]}" if value.name.startswith("present.") else value.name
            found[value.name] = label
    layer = layer_of(nodes[0])
    if layer is not None and layer in layer_outputs(graph):
        found[layer_outputs(graph)[layer]] = f"{stage}.output"
    points = [Point(truth, value) for value, truth in found.items() if value in made]
    return sorted(points, key=lambda point: made[point.value])


def _prelude_points(graph: onnx.GraphProto) -> dict[str, str]:
    """The residual stream into the first layer, and the rotary angles."""
    found: dict[str, str] = {}
    inside = {name for node in graph.node if layer_of(node) == 0 for name in node.output}
    inside |= {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        if layer_of(node) == 0 and node.op_type == "Add":
            found.update({name: "prelude.hidden" for name in node.input if name not in inside})
    for node in graph.node:
        if node.op_type == "RotaryEmbedding":
            return {**found, node.input[1]: "prelude.cos", node.input[2]: "prelude.sin"}
    return found


def gathered_rows(graph: onnx.GraphProto) -> str:
    """The value that says which patch rows a block's padded segments hold; nothing where rows are not padded."""
    for node in graph.node:
        if layer_of(node) == 0 and node.op_type == "Gather":
            return str(node.input[1])
    return ""


def operations(nodes: Sequence[onnx.NodeProto], value: str, known: Iterable[str]) -> list[str]:
    """Names of the nodes between known values and this one; those that only move numbers if there are no others."""
    makers = {name: node for node in nodes for name in node.output}
    stop, seen, waiting = set(known) - {value}, [], [value]
    while waiting:
        name = waiting.pop()
        node = makers.get(name)
        if node is None or name in stop or node in seen:
            continue
        seen.append(node)
        waiting += reads(node)
    ordered = [node for node in nodes if node in seen]
    return [node.name for node in ordered if node.op_type not in MOVES] or [node.name for node in ordered]
