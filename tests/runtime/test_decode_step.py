"""Decoding through the single-token graph: the answers of the growing cache, buffers lent to one conversation."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qwen_export.errors import PackageError
from qwen_export.export import export_vlm
from qwen_export.package import Package, open_package
from qwen_export.recipe import Recipe
from qwen_export.runtime.decode_step import Lease
from qwen_export.runtime.engine import Engine
from qwen_export.runtime.prompt import Prompt
from qwen_export.runtime.session import Device, Sessions
from qwen_export.runtime.shared_weights import load_weights
from qwen_export.runtime.state import State

LIMIT = 1e-5
RECIPE = Recipe(dtype="fp32", target="cpu", kv_cache="static", max_length=96, decode_graph=True)


@pytest.fixture(scope="module")
def static_package(tmp_path_factory, tiny_checkpoint) -> Package:
    output = tmp_path_factory.mktemp("static") / "package"
    export_vlm(tiny_checkpoint, output, recipe=RECIPE)
    return open_package(output)


@pytest.fixture(scope="module")
def static_engine(static_package) -> Engine:
    return Engine(static_package)


@pytest.fixture(scope="module")
def growing_engine(tiny_package) -> Engine:
    return Engine(tiny_package)


def prompt(seed: int, length: int = 40) -> Prompt:
    return Prompt(np.random.default_rng(seed).integers(5, 300, length), ())


def talk(engine: Engine, seed: int, tokens: int) -> tuple[list[np.ndarray], State]:
    """Logits after the prompt and after each of the fixed tokens, and the state at the end."""
    logits, state = engine.prefill([prompt(seed)])
    seen = [logits]
    for token in range(tokens):
        logits, state = engine.decode(np.array([7 + token]), state)
        seen.append(logits)
    return seen, state


def test_equals_the_growing_cache_conversation_after_conversation(static_engine, growing_engine):
    for seed in range(3):
        ours, state = talk(static_engine, seed, 6)
        wanted, reference = talk(growing_engine, seed, 6)
        assert isinstance(state.owner, Lease)
        assert max(np.abs(a - b).max() for a, b in zip(ours, wanted, strict=True)) <= LIMIT
        expected = reference.to_host()
        for name, value in state.to_host().items():
            value = value[:, :, : expected[name].shape[2]] if name.endswith(("key", "value")) else value
            assert np.abs(value - expected[name]).max() <= LIMIT, name
        del state


def test_a_second_conversation_decodes_beside_the_first(static_engine, growing_engine):
    _, first = talk(static_engine, 0, 2)
    ours, second = talk(static_engine, 1, 3)
    assert isinstance(first.owner, Lease)
    assert not isinstance(second.owner, Lease)
    wanted, _ = talk(growing_engine, 1, 3)
    assert np.abs(ours[-1] - wanted[-1]).max() <= LIMIT
    token = np.array([50])
    again, _ = static_engine.decode(token, first)
    expected, _ = growing_engine.decode(token, talk(growing_engine, 0, 2)[1])
    assert np.abs(again - expected).max() <= LIMIT


def test_a_copy_goes_on_alone(static_engine, growing_engine):
    _, state = talk(static_engine, 3, 1)
    kept = state.copy()
    static_engine.decode(np.array([60]), state)
    ours, _ = static_engine.decode(np.array([61]), kept)
    expected, _ = growing_engine.decode(np.array([61]), talk(growing_engine, 3, 1)[1])
    assert np.abs(ours - expected).max() <= LIMIT


def test_padded_rows_do_not_use_it(static_engine):
    logits, state = static_engine.prefill([prompt(4, 20), prompt(5, 30)])
    assert not isinstance(state.owner, Lease)
    logits, _ = static_engine.decode(logits.argmax(-1), state)
    assert np.isfinite(logits).all()


def test_a_package_without_the_graph_says_how_to_get_it(tiny_package):
    with pytest.raises(PackageError, match="--decode-graph"):
        Sessions(tiny_package, Device()).open_decode_graph()


def test_shared_weights_are_the_file_s(static_package):
    path = static_package.graph_path("decoder")
    weights = load_weights(path, Device())
    model = onnx.load(str(path))
    wanted = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    assert weights and set(weights) <= set(wanted)
    assert set(weights) == set(static_package.record("decoder").bindings)
    for name, value in weights.items():
        np.testing.assert_array_equal(value.numpy(), wanted[name])


def test_both_graphs_run_on_shared_weights(static_package, monkeypatch):
    sessions = Sessions(static_package, Device())
    sessions._weights = load_weights(static_package.graph_path("decoder"), Device())
    used = []
    real = sessions._runtime.SessionOptions.add_initializer
    monkeypatch.setattr(
        sessions._runtime.SessionOptions,
        "add_initializer",
        lambda self, name, value: (used.append(name), real(self, name, value))[1],
    )
    assert sessions.get("decoder") and sessions.open_decode_graph()
    assert len(used) == 2 * len(sessions._weights)
