"""The chunked delta rule in standard operators against the plain loop over tokens, in float64."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

from qwen_export.passes.lower_gated_delta_net import lower_gated_delta_net
from qwen_export.passes.names import rename
from tests.passes import delta_net_layer as layer
from tests.passes.delta_net_layer import GATES, KEYS, OUTPUTS, Case, float32_loop, layer_model, plain_loop
from tests.passes.one_node import branch, nodes, operators, session, top_level

HARD_GATES = "now and then forget all"
LENGTHS = (1, 2, 3, 63, 64, 65, 129, 300)
CASES = [
    (gates, keys, length)
    for gates in GATES
    for keys in KEYS
    for length in (LENGTHS if gates == "usual" else (3, 65, 129))
    if gates != HARD_GATES
]
OUT, CONV, STATE = OUTPUTS


@pytest.fixture(scope="module", params=[32, 64], ids=["chunk 32", "chunk 64"])
def lowered(request):
    """Chunk length and a session of the lowered layer."""
    model = layer_model()
    assert lower_gated_delta_net(model, request.param) == 1
    return request.param, session(model)


@cache
def truth(case: Case) -> dict[str, np.ndarray]:
    """The plain loop's result; a chunk's length is nothing to it."""
    return plain_loop(case.feeds(64))


@cache
def rounded(case: Case) -> dict[str, np.ndarray]:
    """The loop in float32."""
    return float32_loop(case.feeds(64))


def relative_rms(got: np.ndarray, wanted: np.ndarray) -> float:
    error = got.astype(np.float64) - wanted
    return float(np.sqrt((error**2).mean()) / np.sqrt((wanted**2).mean()))


def run_case(lowered, case: Case):
    """(lowered, plain loop), outputs at real tokens only; everything finite everywhere."""
    chunk, running = lowered
    feeds = case.feeds(chunk)
    got, wanted = running.run(feeds), dict(truth(case))
    assert all(np.isfinite(value).all() for value in got.values())
    real = feeds["token_mask"][..., 0] > 0
    got[OUT], wanted[OUT] = got[OUT][real], wanted[OUT][real]
    return got, wanted


@pytest.mark.parametrize(("gates", "keys", "length"), CASES)
def test_equals_the_plain_loop(lowered, gates, keys, length):
    # one row whose carried state goes on, one that begins inside this slice
    case = Case(length, keys, gates, pads=(0, min(5, length - 1)), seed=length)
    got, wanted = run_case(lowered, case)
    assert np.array_equal(got[CONV], wanted[CONV].astype(np.float32))
    # a loop over tokens in float32 has 0.1 to 0.8e-6 in these cases
    assert relative_rms(got[STATE], wanted[STATE]) < 2e-6
    assert np.abs(got[STATE] - wanted[STATE]).max() < 5e-6
    # the gated norm blows up the rounding of a result that nearly cancels, ours and a float32 loop's alike
    feeds = case.feeds(lowered[0])
    loop = rounded(case)[OUT][feeds["token_mask"][..., 0] > 0]
    assert relative_rms(got[OUT], wanted[OUT]) < max(3e-6, 4 * relative_rms(loop, wanted[OUT]))


def test_rounding_where_a_chunk_forgets_all_is_no_worse_than_upstreams(lowered):
    """Decays inside a chunk are differences of sums; after a sum of -1000 the difference has few digits left."""
    got, wanted = run_case(lowered, case := Case(129, "random", HARD_GATES))
    feeds = case.feeds(64)
    x = {name: torch.tensor(value) for name, value in feeds.items()}
    window = torch.cat([x["conv_state"], x["qkv"].transpose(1, 2)], 2)
    mixed = torch.nn.functional.conv1d(window, x["conv_weight"][:, None], groups=layer.CHANNELS)
    mixed = torch.nn.functional.silu(mixed).transpose(1, 2)
    query, key, value = mixed.split([layer.KEY_DIM, layer.KEY_DIM, layer.VALUE_DIM], -1)
    _, minus_b, a = x["zba"].split([layer.VALUE_DIM, layer.VALUE_HEADS, layer.VALUE_HEADS], -1)
    rates = torch.nn.functional.softplus(a + x["gate_bias"][layer.VALUE_HEADS :])
    group = layer.VALUE_HEADS // layer.KEY_HEADS
    _, state = torch_chunk_gated_delta_rule(
        *(h.unflatten(-1, (layer.KEY_HEADS, -1)).repeat_interleave(group, 2) for h in (query, key)),
        value.unflatten(-1, (layer.VALUE_HEADS, -1)),
        g=rates * x["gate_scale"][layer.VALUE_HEADS :],
        beta=(-minus_b).sigmoid(),
        initial_state=x["recurrent_state"],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    upstream = relative_rms(state.numpy(), wanted[STATE])
    assert relative_rms(got[STATE], wanted[STATE]) < 1.5 * upstream + 1e-6
    assert upstream < 1e-4


@pytest.mark.parametrize("pads", [(1, 0), (60, 64), (70, 70), (129, 3)])
def test_a_pad_leaves_no_trace(lowered, pads):
    """Rows that begin late, also beyond the first chunk or not at all, end in the state of the row alone."""
    got, wanted = run_case(lowered, Case(129, pads=pads, fresh=True))
    assert relative_rms(got[STATE], wanted[STATE]) < 2e-6
    for row, pad in enumerate(pads):
        if pad == 129:
            assert not got[STATE][row].any() and not got[CONV][row].any()


def test_slices_end_where_one_call_ends(lowered):
    chunk, running = lowered
    feeds = Case(130, pads=(0, 0)).feeds(chunk)
    whole = running.run(feeds)
    state = {name: feeds[name] for name in ("conv_state", "recurrent_state")}
    outs = []
    for start, stop in ((0, 70), (70, 71), (71, 130)):
        part = Case(stop - start, pads=(0, 0)).feeds(chunk)
        for name in ("qkv", "zba"):
            part[name] = feeds[name][:, start:stop]
        part |= {name: feeds[name] for name in ("conv_weight", "gate_bias", "gate_scale", "norm_weight")}
        got = running.run(part | state)
        state = {"conv_state": got[CONV], "recurrent_state": got[STATE]}
        outs.append(got[OUT])
    assert np.array_equal(state["conv_state"], whole[CONV])
    assert relative_rms(state["recurrent_state"], whole[STATE]) < 2e-6
    assert relative_rms(np.concatenate(outs, axis=1), whole[OUT]) < 3e-6


def test_single_step_form_equals_the_branch():
    model, alone = layer_model(), layer_model()
    lower_gated_delta_net(model, 64)
    assert lower_gated_delta_net(alone, 64, single_step=True) == 1
    assert not {"If", "Scan", "Loop"} & set(operators(alone.graph))
    feeds = Case(1, pads=(0, 0)).feeds(64)
    needed = {value.name for value in alone.graph.inputs}
    got, wanted = session(alone).run({k: v for k, v in feeds.items() if k in needed}), session(model).run(feeds)
    assert all(np.array_equal(got[name], wanted[name]) for name in OUTPUTS)


def test_half_precision_is_float32_inside():
    model = layer_model("float16")
    lower_gated_delta_net(model, 64)
    feeds = Case(129).feeds(64)
    halves = {value.name for value in model.graph.inputs if value.dtype == ir.DataType.FLOAT16}
    feeds = {name: value.astype(np.float16) if name in halves else value for name, value in feeds.items()}
    got, wanted = session(model).run(feeds), plain_loop(feeds)
    # float16 inputs are exact in float64; what is left is one rounding of the convolution, and of the result
    assert relative_rms(got[STATE], wanted[STATE]) < 1e-3
    assert relative_rms(got[OUT], wanted[OUT]) < 2e-3
    assert got[STATE].dtype == np.float32


def test_the_scan_carries_only_the_state():
    model = layer_model()
    lower_gated_delta_net(model, 64)
    assert top_level(model.graph) == ["If"]
    assert operators(model.graph)["Scan"] == 1
    assert top_level(branch(model.graph, "carry_state")) == ["Identity", "MatMul", "Add"]
    (scan,) = (node for node in nodes(model.graph) if node.op_type == "Scan")
    assert len(scan.outputs) == 2 and scan.attributes["num_scan_inputs"].as_int() == 2


def test_a_decode_step_runs_no_chunks():
    model = layer_model()
    lower_gated_delta_net(model, 64)
    step = branch(model.graph, "step")
    assert not {"Scan", "CumSum", "If", "Expand", "Where"} & set(operators(step))
    assert len(step) <= 37, "the decode branch of 48 layers is launched for every token: it can only become shorter"


@pytest.mark.parametrize(("length", "trips"), [(2, 1), (63, 1), (64, 1), (65, 2), (128, 2), (300, 5)])
def test_the_scan_runs_once_per_chunk(length, trips, tmp_path):
    model = layer_model()
    lower_gated_delta_net(model, 64)
    rename(model)
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    running = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    running.run(None, Case(length).feeds(64))
    events = json.loads(Path(running.end_profiling()).read_text(encoding="utf-8"))
    carried = [e for e in events if "carry_state" in e["name"] and e.get("args", {}).get("op_name") == "Add"]
    assert len(carried) == trips


def test_second_run_changes_nothing():
    model = layer_model()
    lower_gated_delta_net(model, 64)
    before = [node.op_type for node in nodes(model.graph)]
    assert lower_gated_delta_net(model, 64) == 0
    assert [node.op_type for node in nodes(model.graph)] == before
