"""Small hand-made graphs with the real contract and real bindings: a stand-in for tracing that takes no time.

The outputs are not computed; everything that a package records about a graph is real.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from qwen_export.bindings import Binding, Bindings, Part, linear, vector
from qwen_export.contract import EMBEDDING, OPSET, TEXT, VISION_ENCODER, GraphContract
from qwen_export.model_config import ModelConfig
from qwen_export.package.graphs import expected_contract
from qwen_export.recipe import Recipe

LANGUAGE = "model.language_model."
TYPES = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "int64": ir.DataType.INT64,
}


@dataclass(frozen=True)
class HandMade:
    """What `build_graph` returns."""

    component: str
    model: ir.Model
    bindings: Bindings
    contract: GraphContract


def build_graph(component: str, config: ModelConfig, recipe: Recipe, *, single_step: bool = False) -> HandMade:
    """As `qwen_export.tracing.build_graph`, without tracing."""
    contract = expected_contract(component, config, recipe, single_step=single_step)
    bindings = bindings_of(component, config, recipe.tensor_dtype)
    if single_step:
        bindings = dict(list(bindings.items())[1:])
    inputs = [value(spec.name, spec.dtype, spec.shape) for spec in contract.inputs]
    nodes, outputs = [], []
    for spec in contract.outputs:
        node = ir.node("Identity", [inputs[0]], name=f"give_{spec.name}")
        node.metadata_props.update(
            {"qwen_export.module": "model.language_model", "pkg.torch.onnx.stack_trace": "File /somewhere/model.py"}
        )
        node.outputs[0].name = spec.name
        node.outputs[0].dtype, node.outputs[0].shape = TYPES[spec.dtype], ir.Shape(spec.shape)
        node.outputs[0].metadata_props["pkg.torch.x"] = "y"
        nodes.append(node)
        outputs.append(node.outputs[0])
    weights = [value(name, binding.dtype, binding.shape) for name, binding in bindings.items()]
    one = ir.tensor([1, 2], name="one_two")
    constant = ir.Value(name="one_two", type=ir.TensorType(one.dtype), shape=one.shape, const_value=one)
    graph = ir.Graph(
        inputs,
        outputs,
        nodes=nodes,
        initializers=[*weights, constant],
        name=component,
        opset_imports={"": OPSET},
    )
    return HandMade(component, ir.Model(graph, ir_version=11, producer_name="qwen_export"), bindings, contract)


def value(name: str, dtype: str, shape: tuple[int | str, ...]) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(TYPES[dtype]), shape=ir.Shape(shape))


def bindings_of(component: str, config: ModelConfig, dtype: str) -> Bindings:
    """A few weights of each kind: cast, transposed, joined, transformed in fp32."""
    text, vision = config.text, config.vision
    hidden, embed = text.hidden_size, f"{LANGUAGE}embed_tokens.weight"
    table = Binding((Part(embed),), dtype, (text.vocab_size, hidden))
    if component == EMBEDDING:
        return {"embed_tokens.weight": table}
    if component == VISION_ENCODER:
        assert vision is not None
        key = "model.visual.blocks.0.attn.qkv"
        return {
            "qkv.weight": linear(f"{key}.weight", 3 * vision.hidden_size, vision.hidden_size, dtype),
            "qkv.bias": vector(f"{key}.bias", 3 * vision.hidden_size, dtype),
        }
    full, linear_layer = text.full_layers[0], text.linear_layers[0]
    queries = text.num_attention_heads * text.head_dim
    q_proj = f"{LANGUAGE}layers.{full}.self_attn.q_proj.weight"
    groups = [Part(q_proj, (text.num_attention_heads, 2, pick)) for pick in (0, 1)]
    heads = text.linear_num_value_heads
    return {
        "q_proj": Binding(tuple(groups), dtype, (hidden, 2 * queries), transpose=True),
        "norm": vector(f"{LANGUAGE}norm.weight", hidden, "float32", "one_plus"),
        "a": vector(f"{LANGUAGE}layers.{linear_layer}.linear_attn.A_log", heads, "float32", "neg_exp"),
        **({"embed": table} if component == TEXT else {}),
        "head": linear("lm_head.weight", text.vocab_size, hidden, dtype),
    }
