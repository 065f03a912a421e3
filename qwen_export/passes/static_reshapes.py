"""Give a Reshape its target as a constant, where the axes say it.

Before     y = Reshape(x, Concat(Shape(x)[0], Shape(x)[1], 24, 64))
After      y = Reshape(x, [0, 0, 24, 64])     0 copies the input's axis, one -1 may stand for another symbolic one
Why        torch spells every dynamic target with Shape, Squeeze and Concat: 5 to 8 nodes for a view.
Numerics   SAME: a view.
Declines   1 a symbolic output axis that neither equals the input's axis at its place nor is the only such one
           2 shapes unknown
           3 the target is a constant already
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qwen_export.passes.standard_ops import constant, constant_name


def static_reshapes(model: ir.Model) -> int:
    """Run the pass over the top-level graph. Returns the number of Reshape nodes changed."""
    changed = 0
    for node in model.graph:
        if node.op_type != "Reshape" or node.domain:
            continue
        target = static_target(node)
        if target is None:
            continue
        array = np.array(target, dtype=np.int64)
        name = constant_name(array)
        value = model.graph.initializers.get(name)
        if value is None:
            value = model.graph.initializers[name] = constant(array, name)
        node.replace_input_with(1, value)
        node.attributes.pop("allowzero", None)
        changed += 1
    return changed


def static_target(node: ir.Node) -> list[int] | None:
    """The constant target of a Reshape, or None where the pass declines."""
    data, shape = node.inputs[0], node.inputs[1]
    before, after = data.shape if data else None, node.outputs[0].shape
    if before is None or after is None or shape is None or shape.const_value is not None:
        return None
    target: list[int] = []
    for axis, dim in enumerate(after):
        if isinstance(dim, int):
            target.append(dim)
        elif axis < len(before) and str(dim) == str(before[axis]):
            target.append(0)
        else:
            target.append(-1)
    return target if target.count(-1) <= 1 else None
