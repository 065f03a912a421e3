"""Name every node and value of a piece, and drop what torch and the optimiser left behind.

Before     nodes named `node_MatMul_12`, values `_to_copy_1`, metadata with stack traces and absolute source paths
After      nodes and values named by branch, operator and running number: `step.MatMul_2`; constants by their content,
           so that equal constants of all pieces become one; no metadata but our own, no shapes between nodes
Why        names of subgraph values must not shadow outer ones; paths would publish home folders and break
           byte-identity. torch names axes anew in every piece, so one symbol could mean two lengths in the stamped
           graph; ONNX Runtime derives the shapes again from the contract's axes.
Numerics   SAME: names and annotations only.
Declines   nothing. Graph inputs and bound weights (initializers without a value) keep their names.
"""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from qwen_export.passes.standard_ops import IDEA, constant, constant_name


def rename(model: ir.Model) -> None:
    """Run the pass."""
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.graph.doc_string = None
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    _name_constants(model.graph)
    _rename_graph(model.graph, "", Counter())


def _name_constants(graph: ir.Graph) -> None:
    for name, value in list(graph.initializers.items()):
        if value.const_value is None:
            continue
        wanted = constant_name(value.const_value.numpy())
        if wanted == name:
            continue
        del graph.initializers[name]
        if wanted in graph.initializers:
            value.replace_all_uses_with(graph.initializers[wanted])
        else:
            graph.initializers[wanted] = constant(value.const_value.numpy(), wanted)
            value.replace_all_uses_with(graph.initializers[wanted])


def _rename_graph(graph: ir.Graph, prefix: str, counts: Counter[str]) -> None:
    kept = set(graph.inputs) | set(graph.initializers.values())
    for value in graph.inputs:
        if prefix:
            value.name = f"{prefix}{(value.name or 'input').rsplit('.', 1)[-1]}"
    for node in graph:
        label = f"{prefix}{node.op_type}"
        node.name = f"{label}_{counts[label]}"
        counts[label] += 1
        node.doc_string = None
        idea = node.metadata_props.get(IDEA)
        node.metadata_props.clear()
        if idea:
            node.metadata_props[IDEA] = idea
        for index, value in enumerate(node.outputs):
            value.metadata_props.clear()
            value.shape = None
            if value not in kept:
                value.name = node.name if len(node.outputs) == 1 else f"{node.name}.{index}"
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                inner = attribute.as_graph()
                _rename_graph(inner, f"{prefix}{inner.name}.", counts)
