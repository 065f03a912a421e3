"""Build the graph of one component: trace its pieces, lower them, put them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from qwen_export.bindings import Bindings
from qwen_export.contract import (
    BATCH,
    DECODER,
    EMBEDDING,
    FLOAT32,
    INT64,
    SEQUENCE,
    TEXT,
    TOTAL,
    VISION_ENCODER,
    GraphContract,
    StateSpec,
    TensorSpec,
    decoder_contract,
    embedding_contract,
    states,
)
from qwen_export.model_config import ModelConfig
from qwen_export.passes.pipeline import lower
from qwen_export.recipe import Recipe
from qwen_export.tracing.stamp import Assembly
from qwen_export.tracing.trace import TracedPiece, trace, without_weight_data
from qwen_export.wrappers.piece import Piece

PRODUCER = "qwen_export"


@dataclass(frozen=True)
class BuiltGraph:
    """A component's graph in standard operators, its weights bound but without data.

    Attributes:
        model: initializers named as in `bindings` have no value; all others are small constants.
        bindings: in the order in which the bytes are to be stored.
    """

    component: str
    model: ir.Model
    bindings: Bindings
    contract: GraphContract


def build_graph(
    component: str, config: ModelConfig, recipe: Recipe, *, sizes: Mapping[str, int] | None = None
) -> BuiltGraph:
    """Trace one component for a config. No weights are read.

    Args:
        component: `vision_encoder`, `embedding`, `decoder` or `text`.
        sizes: sample length per axis name, to show that they do not matter.
    """
    builders = {VISION_ENCODER: _vision_encoder, EMBEDDING: _embedding, DECODER: _decoder, TEXT: _decoder}
    return builders[component](component, config, recipe, sizes)


def _piece(
    piece: Piece, inputs: Sequence[TensorSpec], outputs: Sequence[str], recipe: Recipe, sizes: Mapping[str, int] | None
) -> TracedPiece:
    model = trace(piece, inputs, outputs, sizes=sizes)
    without_weight_data(model, piece.bindings, piece.constants)
    lower(model, recipe)
    return TracedPiece(model, piece.bindings)


def _embedding(
    component: str, config: ModelConfig, recipe: Recipe, sizes: Mapping[str, int] | None
) -> BuiltGraph:
    from qwen_export.wrappers.decoder import LANGUAGE_MODEL
    from qwen_export.wrappers.embedding import EmbeddingWrapper
    from qwen_export.wrappers.upstream import below, meta_ends

    contract = embedding_contract(config, recipe.tensor_dtype)
    table = {"embed_tokens.weight": below(meta_ends(config), LANGUAGE_MODEL)["embed_tokens.weight"]}
    traced = _piece(EmbeddingWrapper(table, config, recipe), contract.inputs, ["inputs_embeds"], recipe, sizes)
    assembly = Assembly(contract)
    module = f"{LANGUAGE_MODEL}embed_tokens"
    outputs = assembly.stamp(traced.model.graph, assembly.inputs, traced.bindings, name="", module=module)
    return BuiltGraph(component, assembly.finish(outputs, PRODUCER), assembly.bindings, contract)


def _decoder(component: str, config: ModelConfig, recipe: Recipe, sizes: Mapping[str, int] | None) -> BuiltGraph:
    from qwen_export.wrappers.decoder import layer_prefix
    from qwen_export.wrappers.upstream import decoder_layer, decoder_pieces, meta_ends, meta_layer

    dtype, text = recipe.tensor_dtype, config.text
    contract = decoder_contract(
        config, dtype, component=component, logits=recipe.logits, max_length=recipe.static_length
    )
    prelude, head = decoder_pieces(config, recipe, meta_ends(config), text=component == TEXT)
    residual = TensorSpec("x", FLOAT32 if recipe.residual == "float32" else dtype, (BATCH, SEQUENCE, text.hidden_size))
    shared = shared_specs(config, recipe)
    assembly = Assembly(contract)
    start = _piece(prelude, contract.inputs[:3], [residual.name, *(s.name for s in shared)], recipe, sizes)
    x, *given = assembly.stamp(
        start.model.graph, assembly.inputs[:3], start.bindings, name="prelude.", module="model.language_model"
    )
    carried = _by_layer(states(text, dtype, max_length=recipe.static_length))
    kinds: dict[str, tuple[int, TracedPiece]] = {}
    present: list[ir.Value] = []
    for layer, kind in enumerate(text.layer_types):
        specs = [state.past for state in carried[layer]]
        if kind not in kinds:
            piece = decoder_layer(config, recipe, layer, meta_layer(config, layer))
            outputs = ["y", *(state.kind for state in carried[layer])]
            kinds[kind] = layer, _piece(piece, [residual, *shared, *specs], outputs, recipe, sizes)
        first, traced = kinds[kind]
        old, new = layer_prefix(first), layer_prefix(layer)
        past = [value for value in assembly.inputs if value.name in {spec.name for spec in specs}]
        x, *states_out = assembly.stamp(
            traced.model.graph,
            [x, *given, *past],
            {name: binding.renamed(old, new) for name, binding in traced.bindings.items()},
            name=f"layers.{layer}.",
            module=new.removesuffix("."),
        )
        present += states_out
    end = _piece(head, [residual], ["logits"], recipe, sizes)
    logits = assembly.stamp(end.model.graph, [x], end.bindings, name="head.", module="lm_head")
    model = assembly.finish([*logits, *present], PRODUCER)
    return BuiltGraph(component, model, assembly.bindings, contract)


def shared_specs(config: ModelConfig, recipe: Recipe) -> list[TensorSpec]:
    """The prelude's outputs after the hidden state: what every decoder layer is given."""
    dtype, angles = recipe.tensor_dtype, (BATCH, SEQUENCE, config.text.rotary_dim // 2)
    return [
        TensorSpec("cos", FLOAT32, angles),
        TensorSpec("sin", FLOAT32, angles),
        TensorSpec("single_step", "bool", ()),
        TensorSpec("token_mask", dtype, (BATCH, SEQUENCE, 1)),
        TensorSpec("chunk_index", INT64, ("chunk_slots",)),
        TensorSpec("chunk_mask", FLOAT32, (BATCH, "chunk_slots", 1)),
        TensorSpec("unpadded", "bool", ()),
        TensorSpec("attention_bias", dtype, (BATCH, 1, SEQUENCE, TOTAL)),
    ]


def _by_layer(carried: Sequence[StateSpec]) -> dict[int, list[StateSpec]]:
    layers: dict[int, list[StateSpec]] = {}
    for state in carried:
        layers.setdefault(state.layer, []).append(state)
    return layers


def _vision_encoder(
    component: str, config: ModelConfig, recipe: Recipe, sizes: Mapping[str, int] | None
) -> BuiltGraph:
    raise NotImplementedError
