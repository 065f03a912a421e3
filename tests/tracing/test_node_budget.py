"""The graphs of the 27B config: how many nodes, and how many of them a decode step runs.

A decode step launches every node of the top level and of the branches taken, so these numbers are times. They are
frozen as measured: lower them when they fall, never raise them without a measured reason.
"""

from __future__ import annotations

from functools import cache

import pytest

from qwen_export.checkpoint import load_config
from qwen_export.contract import DECODER, EMBEDDING
from qwen_export.model_config import parse_config
from qwen_export.recipe import Recipe
from qwen_export.tracing import BuiltGraph, build_graph
from tests.passes.one_node import nodes, operators, subgraphs
from tests.tracing.graph_facts import decode_step_operators

STATIC = Recipe(kv_cache="static", max_length=4096)


@cache
def official(component: str, recipe: str = "fp16", single_step: bool = False) -> BuiltGraph:
    """A graph of the official 27B config."""
    chosen = STATIC if recipe == "static" else Recipe(dtype=recipe)
    return build_graph(component, parse_config(load_config("qwen3.8-27b")), chosen, single_step=single_step)


def test_a_decode_step_stays_within_its_budget():
    graph = official(DECODER).model.graph
    executed = sum(decode_step_operators(graph).values())
    assert executed <= 4200, "the budget"
    assert executed <= 3270, "measured: it can only fall"
    assert len(graph) <= 1330
    assert sum(operators(graph).values()) <= 8930


def test_the_embedding_is_small():
    assert len(official(EMBEDDING).model.graph) <= 25


@pytest.mark.full
def test_the_decode_graph_is_flat_and_small():
    graph = official(DECODER, "static", single_step=True).model.graph
    assert not any(subgraphs(node) for node in graph)
    assert not {"If", "Scan", "Loop"} & set(operators(graph))
    assert len(graph) <= 3308
    assert operators(graph)["Attention"] == 16 and operators(graph)["TensorScatter"] == 32


def test_one_attention_per_full_layer_and_one_scan_per_linear_layer():
    graph = official(DECODER).model.graph
    step = decode_step_operators(graph)
    assert step["Attention"] == 16 and step["Scan"] == 0
    total = operators(graph)
    assert total["Attention"] == 32, "one in each of the two branches of a layer"
    assert total["Scan"] == 48
    assert total["If"] == 2 + 16 + 48


def test_operators_that_wait_or_run_on_the_cpu_are_absent():
    found = set(operators(official(DECODER).model.graph)) | set(operators(official(EMBEDDING).model.graph))
    assert not found & {
        "SplitToSequence", "SequenceAt", "Loop", "ScatterND", "ScatterElements", "NonZero", "Trilu", "Swish",
    }  # fmt: skip


def test_decode_conditions_come_from_shapes():
    """ONNX Runtime keeps shape arithmetic on the host, so `If(one token)` never waits for the device."""
    graph = official(DECODER).model.graph
    conditions = {node.inputs[0] for node in graph if node.op_type == "If"}
    assert len(conditions) == 2
    sources = {ancestor_operators(value) for value in conditions}
    assert frozenset({"Equal", "Squeeze", "Shape"}) in sources
    assert frozenset({"Equal", "ReduceMin"}) in sources


def ancestor_operators(value) -> frozenset[str]:
    """Operators that a value is computed with."""
    producer = value.producer()
    if producer is None:
        return frozenset()
    inputs = (ancestor_operators(given) for given in producer.inputs if given is not None)
    return frozenset({producer.op_type}).union(*inputs)


def test_no_weight_passes_through_a_transpose():
    """A Transpose of a weight would be folded into a second copy of it at load."""
    built = official(DECODER)
    for node in nodes(built.model.graph):
        if node.op_type == "Transpose":
            assert all(value.name not in built.bindings for value in node.inputs)


def test_half_matrices_are_read_as_they_are():
    """No Cast of a weight: it would double the memory of every matrix."""
    built = official(DECODER)
    for node in nodes(built.model.graph):
        if node.op_type == "Cast":
            name = node.inputs[0].name
            assert name not in built.bindings, f"{name} is cast at run time"
