"""Built graphs: the contract's sides, one standard domain, the same bytes every time, whatever the sample lengths."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes  # noqa: F401  (gives numpy its bfloat16)
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qwen_export.contract import (
    DECODER,
    EMBEDDING,
    IR_VERSION,
    OPSET,
    TEXT,
    decoder_contract,
    embedding_contract,
)
from qwen_export.recipe import Recipe
from qwen_export.tracing import build_graph
from qwen_export.tracing.trace import SAMPLE_SIZES
from tests.passes.one_node import nodes, operators
from tests.tracing.graph_facts import fingerprint, specs

ROOT = Path(__file__).resolve().parents[2]
FULL = Recipe(dtype="fp32", logits="all")
STATIC = Recipe(dtype="fp32", kv_cache="static", max_length=48)
FORMS = {
    "embedding": (EMBEDDING, FULL, False),
    "decoder": (DECODER, FULL, False),
    "decoder fp16": (DECODER, Recipe(dtype="fp16"), False),
    "decoder bf16": (DECODER, Recipe(dtype="bf16"), False),
    "text": (TEXT, Recipe(dtype="fp32"), False),
    "static": (DECODER, STATIC, False),
    "decode graph": (DECODER, STATIC, True),
}
FORBIDDEN = {
    "Loop",
    "ScatterND",
    "NonZero",
    "SplitToSequence",
    "SequenceAt",
    "ScatterElements",
    "SimplifiedLayerNormalization",
}


@pytest.fixture(params=FORMS)
def built(request, tiny_graphs):
    component, recipe, single_step = FORMS[request.param]
    return tiny_graphs.built(component, recipe, single_step=single_step), recipe, single_step


def test_one_standard_graph_with_the_contracts_sides(built, tiny_config):
    graph, recipe, single_step = built
    if graph.component == EMBEDDING:
        contract = embedding_contract(tiny_config, recipe.tensor_dtype)
    else:
        contract = decoder_contract(
            tiny_config,
            recipe.tensor_dtype,
            component=graph.component,
            logits=recipe.logits,
            max_length=recipe.static_length,
            single_step=single_step,
        )
    assert graph.contract == contract
    assert specs(graph.model.graph.inputs) == list(contract.inputs)
    assert specs(graph.model.graph.outputs) == list(contract.outputs)
    model = graph.model
    assert model.opset_imports == {"": OPSET} == {"": 24}
    assert model.ir_version == IR_VERSION <= 13
    assert not model.functions
    for node in nodes(model.graph):
        assert node.domain == "" and onnx.defs.has(node.op_type, max_inclusive_version=OPSET), node.op_type
        assert node.op_type not in FORBIDDEN


def test_the_checker_accepts_it(built):
    graph, _, _ = built
    model = ir.to_proto(graph.model)
    # weights without data are not written; to the checker they are inputs of known type and shape
    for name, binding in graph.bindings.items():
        dtype = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(binding.dtype))
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, dtype, binding.shape))
    onnx.checker.check_model(model, full_check=True)


def test_every_node_says_its_module_and_nothing_of_this_machine(built):
    graph, _, _ = built
    for node in nodes(graph.model.graph):
        assert set(node.metadata_props) <= {"qwen_export.module", "qwen_export.idea"}
        assert node.metadata_props["qwen_export.module"].startswith(("model.", "lm_head"))
    text = ir.to_proto(graph.model).SerializeToString()
    for place in (ROOT, Path.home(), Path(sys.prefix)):
        assert str(place).encode() not in text
    assert b".py" not in text and b"pkg.torch" not in text


def test_names_are_unique(built):
    graph, _, _ = built
    names = [node.name for node in nodes(graph.model.graph)]
    values = [value.name for node in nodes(graph.model.graph) for value in node.outputs]
    assert len(set(names)) == len(names) and len(set(values)) == len(values)
    assert not set(values) & set(graph.model.graph.initializers)


SIZES = [(3, 7, 11), (4, 66, 2), (2, 3, 6)]
"""Sample batch, new tokens, past tokens."""


@pytest.mark.parametrize(
    ("component", "sizes"),
    [
        (EMBEDDING, SIZES[0]),
        (DECODER, SIZES[0]),
        (DECODER, SIZES[1]),
        pytest.param(TEXT, SIZES[0], marks=pytest.mark.full),
        pytest.param(DECODER, SIZES[2], marks=pytest.mark.full),
    ],
)
def test_sample_lengths_do_not_matter(component, sizes, tiny_graphs):
    batch, new, past = sizes
    given = {"batch": batch, "sequence_length": new, "past_sequence_length": past, "num_features": 5}
    given["past_sequence_length + sequence_length"] = past + new
    assert given.keys() <= SAMPLE_SIZES.keys()
    recipe = FULL if component != TEXT else FORMS["text"][1]
    other = build_graph(component, tiny_graphs.config, recipe, sizes=given)
    usual = tiny_graphs.built(component, recipe)
    assert operators(other.model.graph) == operators(usual.model.graph)
    assert fingerprint(other.model) == fingerprint(usual.model)


@pytest.mark.parametrize("component", [EMBEDDING, DECODER])
def test_two_builds_are_the_same_bytes(component, tiny_graphs):
    again = build_graph(component, tiny_graphs.config, FULL)
    usual = tiny_graphs.built(component, FULL)
    assert fingerprint(again.model) == fingerprint(usual.model)
    assert again.bindings == usual.bindings and list(again.bindings) == list(usual.bindings)


OTHER_PROCESS = """
import sys
from pathlib import Path
from qwen_export.model_config import read_config
from qwen_export.recipe import Recipe
from qwen_export.tracing import build_graph
from tests.tracing.graph_facts import fingerprint
for component in ("embedding", "decoder"):
    print(fingerprint(build_graph(component, read_config(Path(sys.argv[1])), Recipe(dtype="fp32", logits="all")).model))
"""


@pytest.mark.parametrize("seed", ["1", pytest.param("987654", marks=pytest.mark.full)])
def test_another_process_with_another_hash_seed_builds_the_same_bytes(seed, tiny_checkpoint, tiny_graphs, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, str(tiny_checkpoint / "config.json")],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    here = [fingerprint(tiny_graphs.built(component, FULL).model) for component in (EMBEDDING, DECODER)]
    assert done.stdout.split() == here
