"""What the tests of whole graphs look at: their bytes, their declared sides, the nodes a decode step runs."""

from __future__ import annotations

import hashlib
from collections import Counter

import onnx_ir as ir

from qwen_export.contract import TensorSpec
from tests.passes.one_node import operators, subgraphs

TAKEN = ("one_token", "no_bias", "step", "unpadded")
"""The branches that a decode step without padding goes through."""
DTYPES = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
    ir.DataType.INT64: "int64",
}


def fingerprint(model: ir.Model) -> str:
    """Hash of the bytes of a graph without weights."""
    return hashlib.sha256(ir.to_proto(model).SerializeToString()).hexdigest()


def specs(values: list[ir.Value]) -> list[TensorSpec]:
    """Inputs or outputs as the contract spells them."""
    out = []
    for value in values:
        assert value.name is not None and value.shape is not None and value.dtype is not None
        shape = tuple(dim if isinstance(dim, int) else str(dim) for dim in value.shape)
        out.append(TensorSpec(value.name, DTYPES[value.dtype], shape))
    return out


def decode_step_operators(graph: ir.Graph) -> Counter[str]:
    """Operators that run for one unpadded token: the top level and the branches taken."""
    counts = Counter(node.op_type for node in graph)
    for node in graph:
        for inner in subgraphs(node):
            if inner.name in TAKEN:
                counts += operators(inner)
    return counts
