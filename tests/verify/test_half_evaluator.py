"""One rounding an operator: the evaluator's half precision is float32 inside and rounded at the end."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import parser

from qwen_export.verify.half_evaluator import HalfEvaluator

HEAD = '<ir_version: 10, opset_import: ["" : 24]>'
TYPES = {np.float16: "float16", ml_dtypes.bfloat16: "bfloat16"}


def run(text: str, **inputs: np.ndarray) -> list[np.ndarray]:
    return HalfEvaluator(parser.parse_model(HEAD + text)).run(None, inputs)


@pytest.fixture(params=list(TYPES), ids=list(TYPES.values()))
def half(request) -> type:
    return request.param


def drawn(half: type, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(half)


@pytest.mark.parametrize(
    ("operator", "exact"),
    [
        ("Sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        ("Exp", np.exp),
        ("Gelu", lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x * math.sqrt(0.5)))),
        ('Gelu<approximate = "tanh">', lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    ],
)  # fmt: skip
def test_pointwise_operators_round_once(operator: str, exact, half: type) -> None:
    x = drawn(half, 64, 8)
    name = TYPES[half]
    (y,) = run(f"agraph ({name}[64,8] x) => ({name}[64,8] y) {{ y = {operator}(x) }}", x=x)
    wanted = exact(x.astype(np.float32)).astype(half)
    assert y.dtype == half
    # the last bit of float32 may tip a rounding that is a tie in half; more than a few would be a second rounding
    assert (y != wanted).mean() < 0.01


def test_products_are_summed_in_float32(half: type) -> None:
    name = TYPES[half]
    a, b = drawn(half, 4, 4096), drawn(half, 4096, 4, seed=1)
    (y,) = run(f"agraph ({name}[4,4096] a, {name}[4096,4] b) => ({name}[4,4] y) {{ y = MatMul(a, b) }}", a=a, b=b)
    assert np.array_equal(y, (a.astype(np.float32) @ b.astype(np.float32)).astype(half))


def test_float32_stays_float32() -> None:
    x = np.array([1.0, 1e-7], np.float32)
    (y,) = run("agraph (float[2] x) => (float[2] y) { y = Exp(x) }", x=x)
    assert y.dtype == np.float32 and y[1] > 1


def test_subgraphs_round_alike(half: type) -> None:
    name = TYPES[half]
    text = f"""agraph (bool c, {name}[9] x) => ({name}[9] y) {{
        y = If (c) <
            then_branch = one () => ({name}[9] p) {{ p = Sigmoid(x) }},
            else_branch = two () => ({name}[9] q) {{ q = Exp(x) }}
        >
    }}"""
    x = drawn(half, 9)
    (y,) = run(text, c=np.array(True), x=x)
    assert y.dtype == half
    assert np.abs(y.astype(np.float32) - 1 / (1 + np.exp(-x.astype(np.float32)))).max() < 4e-3


def test_overflow_is_infinite_and_silent() -> None:
    x = np.array([60000.0], np.float16)
    (y,) = run("agraph (float16[1] x) => (float16[1] y) { y = Add(x, x) }", x=x)
    assert np.isinf(y[0])


@pytest.mark.parametrize("past", [0, 5])
@pytest.mark.parametrize("form", ["causal", "mask", "length"])
def test_attention_equals_the_plain_formula(past: int, form: str) -> None:
    heads, kv_heads, width, new = 4, 2, 8, 3
    total, batch = past + new, 2
    q = drawn(np.float32, batch, new, heads * width)
    k, v = (drawn(np.float32, batch, new, kv_heads * width, seed=s) for s in (1, 2))
    old_k, old_v = (drawn(np.float32, batch, kv_heads, past, width, seed=s) for s in (3, 4))
    keys = np.concatenate([old_k, k.reshape(batch, new, kv_heads, width).swapaxes(1, 2)], axis=2)
    values = np.concatenate([old_v, v.reshape(batch, new, kv_heads, width).swapaxes(1, 2)], axis=2)
    visible = np.arange(total) <= np.arange(past, total)[:, None]
    if form == "mask":
        visible = np.random.default_rng(5).random((batch, 1, new, total)) < 0.7
        visible[..., 0] = True
    scores = q.reshape(batch, new, heads, width).swapaxes(1, 2) @ keys.repeat(2, axis=1).swapaxes(2, 3) * width**-0.5
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = (weights / weights.sum(-1, keepdims=True)) @ values.repeat(2, axis=1)
    wanted = wanted.swapaxes(1, 2).reshape(batch, new, -1)
    attributes = {"q_num_heads": heads, "kv_num_heads": kv_heads}
    feeds = {"q": q, "k": k, "v": v, "pk": old_k, "pv": old_v}
    names = ["q", "k", "v", "", "pk", "pv"]
    if form == "mask":
        feeds["m"], names[3] = np.where(visible, 0, -np.inf).astype(np.float32), "m"
    else:
        attributes["is_causal"] = 1
    if form == "length":  # an external cache: whole keys and values, and how many of them count
        feeds = {"q": q, "n": np.full(batch, total)}
        feeds["k"], feeds["v"] = (x.swapaxes(1, 2).reshape(batch, total, -1) for x in (keys, values))
        names = ["q", "k", "v", "", "", "", "n"]
    node = onnx.helper.make_node("Attention", names, ["y"], **attributes)
    (y,) = HalfEvaluator(as_model(node, feeds)).run(None, feeds)
    assert np.abs(y - wanted).max() < 1e-6


def test_a_row_that_sees_nothing_is_zero() -> None:
    x = drawn(np.float32, 1, 2, 8)
    feeds = {"q": x, "k": x, "v": x, "n": np.array([0])}
    node = onnx.helper.make_node("Attention", ["q", "k", "v", "", "", "", "n"], ["y"], q_num_heads=1, kv_num_heads=1)
    (y,) = HalfEvaluator(as_model(node, feeds)).run(None, feeds)
    assert not y.any()


def test_depthwise_convolution_equals_the_plain_one(half: type) -> None:
    x, w = drawn(half, 2, 6, 11), drawn(half, 6, 1, 4, seed=1)
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], group=6, kernel_shape=[4])
    (y,) = HalfEvaluator(as_model(node, {"x": x, "w": w})).run(None, {"x": x, "w": w})
    wide, taps = x.astype(np.float32), w.astype(np.float32)
    wanted = np.stack([[np.correlate(row, taps[c, 0]) for c, row in enumerate(one)] for one in wide])
    assert y.dtype == half
    assert np.abs(y.astype(np.float32) - wanted).max() <= np.abs(wanted).max() * (2e-3 if half is np.float16 else 8e-3)


def as_model(node: onnx.NodeProto, feeds: dict[str, np.ndarray]) -> onnx.ModelProto:
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    graph = onnx.helper.make_graph([node], "one", inputs, [onnx.ValueInfoProto(name="y")])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 24)])
