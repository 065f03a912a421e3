"""Stamping: a layer kind is traced and lowered once, then cloned for every layer that has it.

Each clone's nodes, values and weights carry its layer's name; its bindings read that layer's checkpoint tensors. Bit
for bit the same results as one trace of the whole model, in a quarter of the time and half the memory (a test holds
both graphs equal).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from qwen_export.bindings import Binding
from qwen_export.contract import IR_VERSION, OPSET, GraphContract, TensorSpec

MODULE = "qwen_export.module"
"""Node metadata key: path of the upstream module a node came from, such as `model.language_model.layers.3.mlp`."""


class Assembly:
    """A graph put together from pieces.

    Attributes:
        bindings: initializer name -> binding, in the order in which pieces were added.
    """

    def __init__(self, contract: GraphContract) -> None:
        self.contract = contract
        self.inputs = [_value(spec) for spec in contract.inputs]
        self._graph = ir.Graph(self.inputs, [], nodes=[], name=contract.component, opset_imports={"": OPSET})
        self.bindings: dict[str, Binding] = {}

    def stamp(
        self,
        piece: ir.Graph,
        inputs: Sequence[ir.Value],
        bindings: dict[str, Binding],
        *,
        name: str,
        module: str,
    ) -> list[ir.Value]:
        """Add one clone of a piece. Returns its outputs.

        Args:
            inputs: what the clone reads, in the piece's input order.
            bindings: the clone's own, by the piece's weight names.
            name: prefix of every node, value and weight of the clone, such as `layers.3.`.
            module: canonical upstream module, stored with every node that reads no weight. A node that reads one says
                the module of that weight.
        """
        clone = piece.clone()
        owners: dict[str, str] = {}
        for own, given in zip(clone.inputs, inputs, strict=True):
            own.replace_all_uses_with(given)
        for own_name, value in list(clone.initializers.items()):
            del clone.initializers[own_name]
            if own_name in bindings:
                value.name = name + own_name
                self.bindings[value.name] = bindings[own_name]
                owners[value.name] = owner(bindings[own_name])
            elif own_name in self._graph.initializers:
                value.replace_all_uses_with(self._graph.initializers[own_name])
                continue
            self._graph.initializers[str(value.name)] = value
        outputs = list(clone.outputs)
        clone.outputs.clear()
        nodes = list(clone)
        clone.remove(nodes)
        for node in nodes:
            _label(node, name, module, owners)
        self._graph.extend(nodes)
        # a piece may hand an input straight on
        handed = {id(own): given for own, given in zip(clone.inputs, inputs, strict=True)}
        return [handed.get(id(value), value) for value in outputs]

    def finish(self, outputs: Sequence[ir.Value], producer: str) -> ir.Model:
        """Name and type the outputs as the contract says and return the model."""
        for value, spec in zip(outputs, self.contract.outputs, strict=True):
            value.name = spec.name
            value.shape = ir.Shape(spec.shape)
            value.type = ir.TensorType(_TYPES[spec.dtype])
            self._graph.outputs.append(value)
        model = ir.Model(self._graph, ir_version=IR_VERSION, producer_name=producer)
        # what no layer of this graph reads: the prelude plans for every kind of cache
        RemoveUnusedNodesPass()(model)
        return model


_TYPES = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "int64": ir.DataType.INT64,
    "bool": ir.DataType.BOOL,
}


def _value(spec: TensorSpec) -> ir.Value:
    return ir.Value(name=spec.name, type=ir.TensorType(_TYPES[spec.dtype]), shape=ir.Shape(spec.shape))


def owner(binding: Binding) -> str:
    """The upstream module that a weight belongs to; of several modules, the one that holds them all."""
    paths = [tensor.split(".")[:-1] for tensor in binding.tensors]
    shared = takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
    return ".".join(names[0] for names in shared)


def _label(node: ir.Node, prefix: str, module: str, owners: Mapping[str, str]) -> None:
    node.name = prefix + (node.name or node.op_type)
    read = (owners.get(str(value.name)) for value in node.inputs if value is not None)
    node.metadata_props[MODULE] = next((path for path in read if path), module)
    for value in node.outputs:
        value.name = prefix + (value.name or node.op_type)
    for attribute in node.attributes.values():
        for graph in _graphs(attribute):
            for inner in (*graph.inputs,):
                inner.name = prefix + (inner.name or "")
            for inner_node in graph:
                _label(inner_node, prefix, module, owners)


def _graphs(attribute: ir.Attr) -> Sequence[ir.Graph]:
    if attribute.type == ir.AttributeType.GRAPH:
        return [attribute.as_graph()]
    if attribute.type == ir.AttributeType.GRAPHS:
        return list(attribute.as_graphs())
    return []
