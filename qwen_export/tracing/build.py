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
    vision_encoder_contract,
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


@dataclass(frozen=True)
class Request:
    """What to build: the arguments of `build_graph`, passed on to each piece."""

    component: str
    config: ModelConfig
    recipe: Recipe
    sizes: Mapping[str, int] | None
    single_step: bool

    def piece(self, piece: Piece, inputs: Sequence[TensorSpec], outputs: Sequence[str]) -> TracedPiece:
        """Trace one piece and lower it to standard operators."""
        model = trace(piece, inputs, outputs, sizes=self.sizes)
        without_weight_data(model, piece.bindings, piece.constants)
        lower(model, self.recipe, single_step=self.single_step)
        return TracedPiece(model, piece.bindings)


def build_graph(
    component: str,
    config: ModelConfig,
    recipe: Recipe,
    *,
    sizes: Mapping[str, int] | None = None,
    single_step: bool = False,
) -> BuiltGraph:
    """Trace one component for a config. No weights are read.

    Args:
        component: `vision_encoder`, `embedding`, `decoder` or `text`.
        sizes: sample length per axis name, to show that they do not matter.
        single_step: the decoder's capturable graph for one token, free of If, Scan and Loop (static cache only).
    """
    builders = {VISION_ENCODER: _vision_encoder, EMBEDDING: _embedding, DECODER: _decoder, TEXT: _decoder}
    return builders[component](Request(component, config, recipe, sizes, single_step))


def _embedding(request: Request) -> BuiltGraph:
    from qwen_export.wrappers.decoder import LANGUAGE_MODEL
    from qwen_export.wrappers.embedding import EmbeddingWrapper
    from qwen_export.wrappers.upstream import below, meta_ends

    config, recipe = request.config, request.recipe
    contract = embedding_contract(config, recipe.tensor_dtype)
    table = {"embed_tokens.weight": below(meta_ends(config), LANGUAGE_MODEL)["embed_tokens.weight"]}
    traced = request.piece(EmbeddingWrapper(table, config, recipe), contract.inputs, ["inputs_embeds"])
    assembly = Assembly(contract)
    module = f"{LANGUAGE_MODEL}embed_tokens"
    outputs = assembly.stamp(traced.model.graph, assembly.inputs, traced.bindings, name="", module=module)
    return BuiltGraph(request.component, assembly.finish(outputs, PRODUCER), assembly.bindings, contract)


def _decoder(request: Request) -> BuiltGraph:
    from qwen_export.wrappers.decoder import layer_prefix
    from qwen_export.wrappers.upstream import decoder_layer, decoder_pieces, meta_ends, meta_layer

    config, recipe, dtype = request.config, request.recipe, request.recipe.tensor_dtype
    contract = decoder_contract(
        config,
        dtype,
        component=request.component,
        logits=recipe.logits,
        max_length=recipe.static_length,
        single_step=request.single_step,
    )
    prelude, head = decoder_pieces(config, recipe, meta_ends(config), text=request.component == TEXT)
    residual, *shared = shared_specs(config, recipe, 1 if request.single_step else SEQUENCE)
    assembly = Assembly(contract)
    start = request.piece(prelude, contract.inputs[:3], [residual.name, *(s.name for s in shared)])
    x, *given = assembly.stamp(
        start.model.graph, assembly.inputs[:3], start.bindings, name="prelude.", module="model.language_model"
    )
    carried = _by_layer(states(config.text, dtype, max_length=recipe.static_length))
    kinds: dict[str, tuple[int, TracedPiece]] = {}
    present: list[ir.Value] = []
    for layer, kind in enumerate(config.text.layer_types):
        specs = [state.past for state in carried[layer]]
        if kind not in kinds:
            piece = decoder_layer(config, recipe, layer, meta_layer(config, layer))
            outputs = ["y", *(state.kind for state in carried[layer])]
            kinds[kind] = layer, request.piece(piece, [residual, *shared, *specs], outputs)
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
    end = request.piece(head, [residual], ["logits"])
    logits = assembly.stamp(end.model.graph, [x], end.bindings, name="head.", module="lm_head")
    model = assembly.finish([*logits, *present], PRODUCER)
    return BuiltGraph(request.component, model, assembly.bindings, contract)


def shared_specs(config: ModelConfig, recipe: Recipe, length: int | str = SEQUENCE) -> list[TensorSpec]:
    """The prelude's outputs: the residual stream, then what every decoder layer is given. `length`: S."""
    dtype, angles = recipe.tensor_dtype, (BATCH, length, config.text.rotary_dim // 2)
    residual = FLOAT32 if recipe.residual == "float32" else dtype
    return [
        TensorSpec("x", residual, (BATCH, length, config.text.hidden_size)),
        TensorSpec("cos", FLOAT32, angles),
        TensorSpec("sin", FLOAT32, angles),
        TensorSpec("single_step", "bool", ()),
        TensorSpec("token_mask", dtype, (BATCH, length, 1)),
        TensorSpec("chunk_index", INT64, ("chunk_slots",)),
        TensorSpec("chunk_mask", FLOAT32, (BATCH, "chunk_slots", 1)),
        TensorSpec("unpadded", "bool", ()),
        TensorSpec("attention_bias", dtype, (BATCH, 1, length, recipe.static_length or TOTAL)),
        TensorSpec("kv_length", INT64, (BATCH,)),
    ]


def _by_layer(carried: Sequence[StateSpec]) -> dict[int, list[StateSpec]]:
    layers: dict[int, list[StateSpec]] = {}
    for state in carried:
        layers.setdefault(state.layer, []).append(state)
    return layers


def _vision_encoder(request: Request) -> BuiltGraph:
    from qwen_export.wrappers import vision_encoder as vision
    from qwen_export.wrappers import vision_upstream as upstream

    config, recipe = request.config, request.recipe
    assert config.vision is not None
    contract = vision_encoder_contract(config, recipe.tensor_dtype)
    hidden, shared = vision.hidden_spec(config, recipe), vision.vision_shared_specs(config, recipe)
    assembly = Assembly(contract)
    prelude = vision.VisionPrelude(upstream.meta_vision_prelude(config), config, recipe)
    start = request.piece(prelude, contract.inputs, [hidden.name, *(spec.name for spec in shared)])
    module = vision.VISUAL.removesuffix(".")
    x, *given = assembly.stamp(start.model.graph, assembly.inputs, start.bindings, name="prelude.", module=module)
    block = vision.VisionBlock(upstream.meta_vision_block(config), 0, config, recipe)
    traced = request.piece(block, [hidden, *shared], ["y"])
    for index in range(config.vision.depth):
        old, new = vision.block_prefix(0), vision.block_prefix(index)
        [x] = assembly.stamp(
            traced.model.graph,
            [x, *given],
            {name: binding.renamed(old, new) for name, binding in traced.bindings.items()},
            name=f"blocks.{index}.",
            module=new.removesuffix("."),
        )
    merger = vision.VisionMerger(upstream.meta_vision_merger(config), config, recipe)
    end = request.piece(merger, [hidden], ["image_features"])
    features = assembly.stamp(end.model.graph, [x], end.bindings, name="merger.", module=f"{module}.merger")
    return BuiltGraph(request.component, assembly.finish(features, PRODUCER), assembly.bindings, contract)
