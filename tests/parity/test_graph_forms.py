"""The decoder's other forms against the one that the matrix proves: text, last logits, static cache, decode graph."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from qwen_export.contract import DECODER, EMBEDDING, TEXT
from qwen_export.recipe import Recipe
from tests.bound_graph import Arrays, GraphSession, TinyGraphs, carried_on
from tests.parity.two_models import MAX_ABS

ALL = Recipe(dtype="fp32", logits="all")
LENGTH = 160
STATIC = Recipe(dtype="fp32", logits="all", kv_cache="static", max_length=LENGTH)
LENGTHS = (70, 5, 1, 1, 1)
PADS = [(0,), (0, 9), (3, 72)]


def calls(graphs: TinyGraphs, pads: tuple[int, ...]) -> Iterator[Arrays]:
    """Seeded inputs of consecutive calls, without states; ids stand beside their embeddings."""
    rng, total = np.random.default_rng(len(pads)), sum(LENGTHS)
    ids = rng.integers(1, 440, (len(pads), total))
    mask = np.ones((len(pads), total), np.int64)
    for row, pad in enumerate(pads):
        mask[row, :pad] = 0
    positions = np.broadcast_to(np.maximum(mask.cumsum(1) - 1, 0), (3, len(pads), total))
    empty = np.zeros((0, graphs.config.text.hidden_size), np.float32)
    embeds = graphs.session(EMBEDDING, ALL).run({"input_ids": ids, "image_features": empty})["inputs_embeds"]
    start = 0
    for length in LENGTHS:
        part = slice(start, start + length)
        start += length
        yield {
            "input_ids": ids[:, part],
            "inputs_embeds": embeds[:, part],
            "attention_mask": mask[:, :start],
            "position_ids": positions[:, :, part],
        }


def feed(session: GraphSession, call: Arrays, past: Arrays) -> Arrays:
    """One call of one form."""
    return session.run({**{name: value for name, value in call.items() if name in session.inputs}, **past})


@pytest.mark.parametrize("pads", PADS)
@pytest.mark.parametrize("component", [TEXT, DECODER])
def test_text_only_and_last_logits(component, pads, tiny_graphs):
    last = Recipe(dtype="fp32")
    whole, other = tiny_graphs.session(DECODER, ALL), tiny_graphs.session(component, last)
    past = [tiny_graphs.empty_states(len(pads), ALL)] * 2
    for call in calls(tiny_graphs, pads):
        wanted, got = feed(whole, call, past[0]), feed(other, call, past[1])
        assert got["logits"].shape == (len(pads), 1, tiny_graphs.config.text.vocab_size)
        # same operations on the same numbers; only the head's product has another number of rows
        assert np.abs(got["logits"] - wanted["logits"][:, -1:]).max() < 5e-6
        for name in carried_on(wanted):
            present = name.replace("past_key_values", "present")
            assert np.array_equal(got[present], wanted[present]), name
        past = [carried_on(wanted), carried_on(got)]


def grown(outputs: Arrays, length: int) -> Arrays:
    """Outputs of a static cache as those of a growing one."""
    return {n: v[:, :, :length] if n.endswith((".key", ".value")) else v for n, v in outputs.items()}


@pytest.mark.parametrize("pads", PADS)
def test_static_cache(pads, tiny_graphs):
    growing, static = tiny_graphs.session(DECODER, ALL), tiny_graphs.session(DECODER, STATIC)
    past, slots = tiny_graphs.empty_states(len(pads), ALL), tiny_graphs.empty_states(len(pads), STATIC)
    # what lies in unfilled slots must not matter
    slots = {n: v + 50 if n.endswith((".key", ".value")) else v for n, v in slots.items()}
    for call in calls(tiny_graphs, pads):
        length = call["attention_mask"].shape[1]
        wanted, raw = feed(growing, call, past), feed(static, call, slots)
        got = grown(raw, length)
        for name, value in wanted.items():
            real = call["attention_mask"] > 0
            if name.endswith((".key", ".value")):
                pair = (got[name].transpose(0, 2, 1, 3)[real], value.transpose(0, 2, 1, 3)[real])
            elif name == "logits":
                new = real[:, -value.shape[1] :]
                pair = got[name][new], value[new]
            else:
                pair = got[name], value
            assert np.isfinite(raw[name]).all()
            assert not pair[0].size or np.abs(pair[0] - pair[1]).max() < MAX_ABS, name
        assert all((raw[n][:, :, length:] == 50).all() for n in raw if n.endswith((".key", ".value")))
        past, slots = carried_on(wanted), carried_on(raw)


def test_decode_graph(tiny_graphs):
    """One token, no branch: equal to the static graph, whose mask ends at the token where this one's ends at L."""
    static = tiny_graphs.session(DECODER, STATIC)
    flat = tiny_graphs.session(DECODER, STATIC, single_step=True)
    past = tiny_graphs.empty_states(2, STATIC)
    for call in calls(tiny_graphs, (0, 0)):
        wanted = feed(static, call, past)
        if call["inputs_embeds"].shape[1] == 1:
            mask = np.zeros((2, LENGTH), np.int64)
            mask[:, : call["attention_mask"].shape[1]] = 1
            got = feed(flat, call | {"attention_mask": mask}, past)
            for name, value in wanted.items():
                assert np.abs(got[name] - value).max() < MAX_ABS, name
        past = carried_on(wanted)
