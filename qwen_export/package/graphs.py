"""Save a built graph as `model.onnx`: bound weights become references into the data file, traces of tracing go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import onnx_ir as ir

from qwen_export.bindings import Bindings
from qwen_export.contract import (
    BFLOAT16,
    DECODER,
    EMBEDDING,
    FLOAT16,
    FLOAT32,
    VISION_ENCODER,
    GraphContract,
    decoder_contract,
    embedding_contract,
    graph_file,
    vision_encoder_contract,
)
from qwen_export.errors import InternalError, PackageError
from qwen_export.model_config import ModelConfig
from qwen_export.recipe import Recipe
from qwen_export.weights import Layout

DECODE_GRAPH = f"{DECODER}/decode.onnx"
"""Single-token decoder graph over the decoder's data file."""
NODE_METADATA = ("qwen_export.module", "qwen_export.idea")
"""All that a node may say about where it came from."""

_TYPES = {FLOAT32: ir.DataType.FLOAT, FLOAT16: ir.DataType.FLOAT16, BFLOAT16: ir.DataType.BFLOAT16}


def data_file(component: str) -> str:
    """Where a component's external data lies in a package, as a POSIX path."""
    return graph_file(component) + ".data"


def expected_contract(
    component: str, config: ModelConfig, recipe: Recipe, *, single_step: bool = False
) -> GraphContract:
    """The inputs and outputs that a component's graph must have."""
    dtype = recipe.tensor_dtype
    if component == VISION_ENCODER:
        if config.vision is None:
            raise PackageError("A text-only config has no vision encoder. Export the package again.")
        return vision_encoder_contract(config, dtype)
    if component == EMBEDDING:
        return embedding_contract(config, dtype)
    return decoder_contract(
        config,
        dtype,
        component=component,
        logits=recipe.logits,
        max_length=recipe.static_length,
        single_step=single_step,
    )


def save_graph(model: ir.Model, bindings: Bindings, layout: Layout, path: Path, location: str) -> None:
    """Write one graph.

    Args:
        model: initializers named in `bindings` have no value; all others are constants and stay in the file.
        layout: places of the weights; it may hold more than this graph uses.
        location: file name of the external data, beside the graph. It need not exist.
    """
    initializers = model.graph.initializers
    for name, binding in bindings.items():
        if name not in initializers:
            raise InternalError(f"{path.name}: the binding {name} belongs to no initializer of the graph.")
        slot = layout.slots[name]
        shape = ir.Shape(binding.shape)
        initializers[name].const_value = ir.ExternalTensor(
            PurePosixPath(location).name, slot.offset, slot.num_bytes, _TYPES[binding.dtype], shape=shape, name=name
        )
        initializers[name].shape = shape
        initializers[name].type = ir.TensorType(_TYPES[binding.dtype])
    for name, value in initializers.items():
        if value.const_value is None:
            raise InternalError(f"{path.name}: initializer {name} has neither a value nor a binding.")
    strip_metadata(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(ir.to_proto(model).SerializeToString(deterministic=True))


def strip_metadata(model: ir.Model) -> None:
    """Drop stack traces, doc strings and all metadata but `NODE_METADATA`, in every nested subgraph."""
    model.metadata_props.clear()
    model.doc_string = None
    for graph in _graphs(model.graph):
        graph.metadata_props.clear()
        graph.doc_string = None
        for value in (*graph.inputs, *graph.initializers.values(), *graph.outputs):
            _strip_value(value)
        for node in graph:
            kept = {key: node.metadata_props[key] for key in NODE_METADATA if key in node.metadata_props}
            node.metadata_props.clear()
            node.metadata_props.update(kept)
            node.doc_string = None
            for value in node.outputs:
                _strip_value(value)


def _strip_value(value: ir.Value) -> None:
    value.metadata_props.clear()
    value.doc_string = None
    tensor = value.const_value
    if tensor is not None:
        tensor.metadata_props.clear()
        tensor.doc_string = None


def _graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    yield graph
    for node in graph:
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield from _graphs(attribute.as_graph())
            elif attribute.type == ir.AttributeType.GRAPHS:
                for inner in attribute.as_graphs():
                    yield from _graphs(inner)
