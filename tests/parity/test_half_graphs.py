"""fp16 graphs load and run on the CPU, near their fp32 twins; bf16 graphs are judged by their structure alone.

ONNX Runtime's CPU provider computes fp16 graphs in float32 and rounds in between: no verdict on half precision.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qwen_export.contract import DECODER, EMBEDDING, VISION_ENCODER
from qwen_export.recipe import Recipe
from tests.bound_graph import carried_on
from tests.parity.prompts import Case, Media, Text
from tests.parity.two_models import Ours

CASE = Case(((Text(4), Media((1, 8, 6)), Text(70)), (Text(20),)), slices=(40,), seed=3)


@pytest.fixture(scope="module")
def runs(tiny_graphs):
    """The case in float32 and in float16."""
    full = Ours(tiny_graphs, Recipe(dtype="fp32", logits="all")).run(CASE)
    half = Ours(tiny_graphs, Recipe(dtype="fp16", logits="all"))
    # both are fed the same tokens, so that every call can be compared
    return full, half.run(CASE, tokens=full.tokens)


def test_fp16_runs_near_fp32(runs):
    full, half = runs
    assert half.features.dtype == np.float16
    for call, wanted in zip(half.calls, full.calls, strict=True):
        real = wanted.mask[:, -wanted.embeds.shape[1] :] > 0
        assert call.outputs["logits"].dtype == np.float16
        for name, value in wanted.outputs.items():
            got = call.outputs[name].astype(np.float32)
            assert np.isfinite(got).all(), name
            if name == "logits":
                got, value = got[real], value[real]
            elif name.endswith((".key", ".value")):
                got, value = (x.transpose(0, 2, 1, 3)[wanted.mask > 0] for x in (got, value))
            error = np.sqrt(((got - value) ** 2).mean()) / np.sqrt((value**2).mean())
            # eleven bits, eight layers
            assert error < 1e-2, f"{name}: {error:.1e}"


def test_recurrent_state_is_float32_in_every_dtype(runs):
    for run in runs:
        for name, value in carried_on(run.calls[-1].outputs).items():
            if name.endswith("recurrent_state"):
                assert value.dtype == np.float32


@pytest.mark.parametrize("component", [EMBEDDING, DECODER, VISION_ENCODER])
def test_bf16_keeps_its_types(component, tiny_graphs):
    built = tiny_graphs.built(component, Recipe(dtype="bf16"))
    kinds = {value.dtype for value in (*built.model.graph.inputs, *built.model.graph.outputs)}
    assert ir.DataType.FLOAT16 not in kinds and ir.DataType.BFLOAT16 in kinds
    if component == DECODER:
        (logits,) = (value for value in built.model.graph.outputs if value.name == "logits")
        assert logits.dtype == ir.DataType.FLOAT
    for node in ir.traversal.RecursiveGraphIterator(built.model.graph):
        if node.op_type == "Cast":
            assert node.attributes["to"].as_int() != ir.DataType.FLOAT16
