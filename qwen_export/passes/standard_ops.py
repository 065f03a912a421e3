"""A small writer of standard-operator nodes, for lowerings.

`ops.MatMul(a, b)` appends a node and returns its output; arrays given as inputs become constants. Constants are named
by their content, so equal ones of different layers and subgraphs are one initializer of the main graph.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from qwen_export.contract import OPSET

IDEA = "qwen_export.idea"
"""Node metadata key: the custom operator a node was lowered from."""

NUMPY = {
    ir.DataType.FLOAT: np.float32,
    ir.DataType.FLOAT16: np.float16,
    ir.DataType.BFLOAT16: ml_dtypes.bfloat16,
    ir.DataType.INT64: np.int64,
}


class StandardOps:
    """Writes nodes of the default domain.

    Attributes:
        nodes: the nodes so far, in order.
        constants: constant name -> value, shared with subgraphs; the caller adds them to the main graph.
    """

    def __init__(self, idea: str, constants: dict[str, ir.Value] | None = None) -> None:
        self.idea = idea
        self.nodes: list[ir.Node] = []
        self.constants: dict[str, ir.Value] = {} if constants is None else constants

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if not op_type[0].isupper():
            raise AttributeError(op_type)

        def write(*inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
            values = [self._value(x) for x in inputs]
            node = ir.node(op_type, values, attributes or None, num_outputs=outputs, version=None)
            node.metadata_props[IDEA] = self.idea
            self.nodes.append(node)
            return node.outputs[0] if outputs == 1 else tuple(node.outputs)

        return write

    def ints(self, *values: int) -> np.ndarray:
        """An int64 vector, for shapes and axes."""
        return np.array(values, dtype=np.int64)

    def cast(self, x: ir.Value, dtype: ir.DataType, was: ir.DataType) -> ir.Value:
        """Cast, unless the value has that type already."""
        return x if dtype == was else self.Cast(x, to=dtype)

    def silu(self, x: ir.Value) -> ir.Value:
        """x * sigmoid(x); `Swish` has no kernel anywhere."""
        return self.Mul(x, self.Sigmoid(x))

    def graph(
        self,
        name: str,
        body: Callable[[StandardOps], Sequence[tuple[ir.Value, ir.DataType]]],
        inputs: Sequence[ir.Value] = (),
    ) -> ir.Graph:
        """A subgraph; `body` writes it and returns its outputs with their element types."""
        inner = StandardOps(self.idea, self.constants)
        outputs = []
        for value, dtype in body(inner):
            value.type = ir.TensorType(dtype)
            outputs.append(value)
        return ir.Graph(inputs, outputs, nodes=inner.nodes, name=name)

    def _value(self, x: Any) -> ir.Value | None:
        if x is None or isinstance(x, ir.Value):
            return x
        array = np.asarray(x)
        name = constant_name(array)
        if name not in self.constants:
            self.constants[name] = constant(array, name)
        return self.constants[name]


def constant_name(array: np.ndarray) -> str:
    """A name that says what a constant holds: equal names mean equal constants."""
    kind = f"{array.dtype.name}_{'x'.join(map(str, array.shape)) or 'scalar'}"
    if array.size <= 8 and array.dtype.kind in "ib":
        return f"constant.{kind}.{'_'.join(str(int(v)) for v in array.flatten()) or 'empty'}"
    return f"constant.{kind}.{hashlib.sha256(array.tobytes()).hexdigest()[:12]}"


def constant(array: np.ndarray, name: str) -> ir.Value:
    """An initializer holding `array`."""
    tensor = ir.tensor(array, name=name)
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)


def lower_nodes(model: ir.Model, op_type: str, lowering: Callable[[StandardOps, ir.Node], Sequence[ir.Value]]) -> int:
    """Replace every `qwen_export::op_type` node by what `lowering` writes. Returns how many were replaced.

    Raises nothing of its own: a node the lowering cannot take is our fault and surfaces as its exception.
    """
    found = [node for node in model.graph if node.domain == "qwen_export" and node.op_type == op_type]
    for node in found:
        ops = StandardOps(op_type)
        new = list(lowering(ops, node))
        for name, value in ops.constants.items():
            if name in model.graph.initializers:
                value.replace_all_uses_with(model.graph.initializers[name])
            else:
                model.graph.initializers[name] = value
        ir.convenience.replace_nodes_and_values(model.graph, node, [node], ops.nodes, node.outputs, new)
    if found:
        model.graph.opset_imports[""] = OPSET
    return len(found)
