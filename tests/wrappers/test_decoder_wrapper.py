"""The decoder wrapper, run eagerly, equals Transformers: before any graph is made of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qwen_export.contract import states
from qwen_export.recipe import Recipe
from qwen_export.wrappers.upstream import whole_decoder
from tests.parity.prompts import Case, Text
from tests.parity.two_models import MAX_ABS, RELATIVE_RMS, Call, Run, Upstream, compare, cuts


class Eager:
    """The wrapper in the place of a graph's session."""

    def __init__(self, graphs: Any, recipe: Recipe) -> None:
        self.config = graphs.config
        self.wrapper = whole_decoder(graphs.config, recipe, graphs.tensors).eval()
        self.names = [state.present.name for state in states(graphs.config.text, "float32")]

    @torch.no_grad()
    def call(self, call: Call, past: list[torch.Tensor]) -> Call:
        """The same call, with our states."""
        arrays = (torch.tensor(array) for array in (call.embeds, call.mask, call.positions))
        logits, *present = self.wrapper(*arrays, past)
        outputs = {"logits": logits.numpy(), **dict(zip(self.names, (p.numpy() for p in present), strict=True))}
        return Call(call.embeds, call.mask, call.positions, outputs)


@pytest.mark.parametrize(
    "case",
    [
        Case(((Text(70),),), slices=(30, 5), steps=3),
        Case(((Text(40),), (Text(25),)), slices=(10,), steps=3, seed=1),
        Case(((Text(1),),), pad=2, seed=2),
    ],
    ids=["slices", "padding across slices", "one token behind padding"],
)
@pytest.mark.parametrize("residual", ["model", "float32"])
def test_equals_transformers(case, residual, tiny_upstream, tiny_graphs):
    judge = Upstream(tiny_upstream, tiny_graphs).run(case)
    eager = Eager(tiny_graphs, Recipe(dtype="fp32", logits="all", residual=residual))
    empty = tiny_graphs.empty_states(len(judge.prompt.ids), Recipe(dtype="fp32"))
    run, past = Run(judge.prompt), [torch.tensor(value) for value in empty.values()]
    for wanted in judge.calls:
        call = eager.call(wanted, past)
        past = [torch.tensor(call.outputs[name]) for name in eager.names]
        run.decided(call)
    assert len(run.calls) == len(cuts(case, judge.prompt.ids.shape[1])) + case.steps
    outside = [distance for distance in compare(run, judge) if not distance.is_within]
    assert not outside, f"limits {MAX_ABS} and {RELATIVE_RMS}"


def test_last_logits_are_the_last_of_all(tiny_graphs):
    torch.manual_seed(0)
    embeds, mask = torch.randn(2, 5, tiny_graphs.config.text.hidden_size), torch.ones(2, 5, dtype=torch.int64)
    positions = torch.arange(5).expand(3, 2, 5)
    past = [torch.tensor(value) for value in tiny_graphs.empty_states(2, Recipe(dtype="fp32")).values()]
    outs = []
    for logits in ("all", "last"):
        wrapper = whole_decoder(tiny_graphs.config, Recipe(dtype="fp32", logits=logits), tiny_graphs.tensors)
        with torch.no_grad():
            outs.append(wrapper(embeds, mask, positions, past)[0])
    assert outs[1].shape == (2, 1, tiny_graphs.config.text.vocab_size)
    assert torch.allclose(outs[0][:, -1:], outs[1], atol=1e-6)


def test_the_text_wrapper_looks_its_tokens_up(tiny_graphs):
    config, recipe = tiny_graphs.config, Recipe(dtype="fp32")
    table = tiny_graphs.tensors["model.language_model.embed_tokens.weight"]
    ids, mask = torch.tensor([[5, 9, 400]]), torch.ones(1, 3, dtype=torch.int64)
    positions = torch.arange(3).expand(3, 1, 3)
    past = [torch.tensor(value) for value in tiny_graphs.empty_states(1, recipe).values()]
    text = whole_decoder(config, recipe, tiny_graphs.tensors, text=True)
    plain = whole_decoder(config, recipe, tiny_graphs.tensors)
    with torch.no_grad():
        outs = text(ids, mask, positions, past), plain(table[ids], mask, positions, past)
    assert all(torch.equal(*pair) for pair in zip(*outs, strict=True))


def test_both_operators_know_their_shapes():
    """torch's own check that the eager operators and their shape rules agree, for one token and for many."""
    from tests.passes import delta_net_layer as layer

    for length in (1, 3):
        feeds = layer.Case(length).feeds(8)
        args = [torch.tensor(value) for value in feeds.values()]
        torch.library.opcheck(
            torch.ops.qwen_export.gated_delta_net,
            (*args, layer.KEY_HEADS, layer.VALUE_HEADS, layer.EPS),
            test_utils=("test_schema", "test_faketensor"),
        )
        mask = torch.ones(2, 5 + length, dtype=torch.int64)
        for max_length in (0, 16):
            plan = (torch.zeros(2, length, 4), mask, 8, max_length)
            torch.library.opcheck(torch.ops.qwen_export.plan_step, plan, test_utils=("test_schema", "test_faketensor"))
