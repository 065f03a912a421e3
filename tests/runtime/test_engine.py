"""Slices, batches, further turns and kept states give what one whole run gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qwen_export.errors import InputError, PackageError, UsageError
from qwen_export.runtime.engine import Engine
from qwen_export.runtime.generate import generate
from qwen_export.runtime.preprocess import ImagePreprocessor, Media
from qwen_export.runtime.prompt import Prompt, PromptBuilder, user_message
from qwen_export.runtime.sampling import Sampler, Sampling
from qwen_export.runtime.state import State, load_state
from qwen_export.runtime.video import prepare_video, read_settings
from tests.runtime.odd_pictures import marker

LIMIT = 5e-5


@pytest.fixture(scope="module")
def engine(tiny_package) -> Engine:
    return Engine(tiny_package)


@pytest.fixture(scope="module")
def prompts(tiny_package) -> list[Prompt]:
    """Two pictures; text; one picture and a video: of different lengths."""
    builder = PromptBuilder(tiny_package.folder, tiny_package.config)
    images = ImagePreprocessor(tiny_package.folder)
    video = prepare_video([marker(100 + i, 64 + i) for i in (0, 0, 0, 0, 0)], read_settings(tiny_package.folder))
    media: list[list[Media]] = [
        [images.prepare(marker(160, 128)), images.prepare(marker(200, 320))],
        [],
        [images.prepare(marker(300, 90)), video],
    ]
    texts = ["What is in them?", "Hello", "And here? Tell me about it."]
    return [builder.encode(builder.render([user_message(t, m)]), m) for t, m in zip(texts, media, strict=True)]


def worst(left: State, right: State, row: int = 0) -> float:
    """Largest difference of row `row` of one state and the only row of another; KV at real positions."""
    ours, theirs = left.to_host(), right.to_host()
    out = 0.0
    for spec in left.specs:
        a, b = ours[spec.past.name][row], theirs[spec.past.name][0]
        a = a[:, -b.shape[1] :] if spec.kind in ("key", "value") else a
        out = max(out, float(np.abs(a - b).max()))
    return out


@pytest.mark.parametrize("slice_size", [7, 64, 1024])
@pytest.mark.parametrize("row", [0, 1, 2])
def test_sliced_prefill_equals_unsliced(engine, prompts, slice_size, row):
    whole, whole_state = engine.prefill([prompts[row]], slice_size=10**6)
    sliced, sliced_state = engine.prefill([prompts[row]], slice_size=slice_size)
    assert np.abs(whole - sliced).max() <= LIMIT
    assert worst(sliced_state, whole_state) <= LIMIT
    assert np.array_equal(whole_state.next_position, sliced_state.next_position)


@pytest.mark.parametrize("slice_size", [7, 64, 1024])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_a_padded_batch_equals_singles(engine, prompts, slice_size, order):
    rows = [prompts[i] for i in order]
    logits, state = engine.prefill(rows, slice_size=slice_size)
    after, later = engine.decode(logits.argmax(-1), state)
    for row, prompt in enumerate(rows):
        alone, alone_state = engine.prefill([prompt])
        assert np.abs(logits[row] - alone[0]).max() <= LIMIT
        assert worst(state, alone_state, row) <= LIMIT
        alone_after, alone_later = engine.decode(alone.argmax(-1), alone_state)
        assert np.abs(after[row] - alone_after[0]).max() <= LIMIT
        assert worst(later, alone_later, row) <= LIMIT
        assert later.next_position[row] == alone_later.next_position[0]


def test_slices_of_one_token_see_padding(engine):
    """The decode branch looks at no mask: a padded batch must not be fed token by token."""
    rows = [Prompt(np.arange(1, 6)), Prompt(np.arange(7, 9))]
    logits, state = engine.prefill(rows, slice_size=1)
    for row, prompt in enumerate(rows):
        alone, alone_state = engine.prefill([prompt])
        assert np.abs(logits[row] - alone[0]).max() <= LIMIT
        assert worst(state, alone_state, row) <= LIMIT


def test_a_batch_generates_what_singles_generate(engine, prompts):
    def tokens(rows):
        made = generate(
            engine, rows, max_new_tokens=12, end_tokens=frozenset({17}), sampler=Sampler(Sampling()), slice_size=50
        )
        return list(made.tokens)

    assert tokens(prompts) == [tokens([prompt])[0] for prompt in prompts]
    assert tokens(prompts[::-1]) == tokens(prompts)[::-1]


def test_requests_do_not_remember_each_other(engine, prompts):
    first, _ = engine.prefill([prompts[0]])
    engine.prefill([prompts[1]])
    again, _ = engine.prefill([prompts[0]])
    assert np.array_equal(first, again)


def test_a_further_turn_equals_one_long_prompt(engine, prompts):
    long = Prompt(np.concatenate([prompts[0].input_ids, prompts[2].input_ids]), prompts[0].media + prompts[2].media)
    whole, whole_state = engine.prefill([long])
    _, kept = engine.prefill([prompts[0]])
    turn, turn_state = engine.prefill([prompts[2]], kept, slice_size=33)
    assert np.abs(whole - turn).max() <= LIMIT
    assert worst(turn_state, whole_state) <= LIMIT
    assert np.array_equal(whole_state.next_position, turn_state.next_position)


def test_a_kept_state_can_be_continued_twice_saved_and_restored(engine, prompts, tmp_path):
    _, kept = engine.prefill([prompts[2]])
    copy = kept.copy()
    first, _ = engine.decode(np.array([5]), kept)
    other, _ = engine.decode(np.array([9]), kept)
    kept.save(tmp_path / "state.npz")
    restored = load_state(tmp_path / "state.npz", kept.specs, kept.device)
    for again in (kept, copy, restored):
        assert np.array_equal(engine.decode(np.array([5]), again)[0], first)
    assert not np.array_equal(first, other)


def test_foreign_and_damaged_states_are_refused(engine, prompts, tmp_path):
    _, kept = engine.prefill([prompts[1]])
    kept.save(tmp_path / "state.npz")
    with pytest.raises(InputError, match="no such saved state"):
        load_state(tmp_path / "other.npz", kept.specs, kept.device)
    (tmp_path / "bad.npz").write_bytes((tmp_path / "state.npz").read_bytes()[:500])
    with pytest.raises(InputError, match="damaged"):
        load_state(tmp_path / "bad.npz", kept.specs, kept.device)
    foreign = tuple(spec for spec in kept.specs if spec.layer == 0)
    other = [replace(spec, past=replace(spec.past, name=spec.past.name + "x")) for spec in foreign]
    with pytest.raises(PackageError, match="state is of another model"):
        load_state(tmp_path / "state.npz", other, kept.device)


def test_right_padding_and_holes_are_refused(engine):
    ids = np.array([[1, 2, 3, 0]])
    with pytest.raises(InputError, match="Only left padding"):
        engine.step(ids, engine.empty_state(), mask=np.array([[1, 1, 1, 0]]))
    _, state = engine.step(ids, engine.empty_state())
    with pytest.raises(InputError, match="Only left padding"):
        engine.step(ids, state, mask=np.array([[0, 1, 1, 1]]))


def test_rows_with_a_state_need_prompts_of_one_length(engine):
    _, state = engine.prefill([Prompt(np.arange(4)), Prompt(np.arange(4))])
    with pytest.raises(InputError, match="padding inside a row"):
        engine.prefill([Prompt(np.arange(4)), Prompt(np.arange(3))], state)
    with pytest.raises(InputError, match="1 prompts do not fit a state of 2 rows"):
        engine.prefill([Prompt(np.arange(4))], state)


def test_counts_are_checked_before_a_graph_runs(engine, tiny_package):
    image = tiny_package.config.image_token_id
    one = np.zeros((1, tiny_package.config.text.hidden_size), np.float32)
    with pytest.raises(InputError, match="2 placeholder tokens but 1 feature rows"):
        engine.step(np.array([[1, image, image]]), engine.empty_state(), features=one)
    with pytest.raises(InputError, match="outside the vocabulary"):
        engine.step(np.array([[10**6]]), engine.empty_state())
    bad = Media("image", np.zeros((8, 1536), np.float32), (1, 4, 4), "cut.png")
    with pytest.raises(InputError, match=r"cut\.png: 8 patch rows"):
        engine.prefill([Prompt(np.array([1, *[image] * 4, 2]), (bad,))])


def test_a_placeholder_that_the_model_says_itself_is_an_ordinary_token(engine, tiny_package, prompts):
    _, state = engine.prefill([prompts[0]])
    logits, after = engine.decode(np.array([tiny_package.config.image_token_id]), state)
    assert np.isfinite(logits).all()
    assert after.next_position[0] == state.next_position[0] + 1


def test_requests_beyond_the_model_are_refused_before_work(engine, monkeypatch):
    monkeypatch.setattr(engine.graphs, "run", None)
    limit = engine.config.text.max_position_embeddings
    settings = {"end_tokens": frozenset(), "sampler": Sampler(Sampling())}
    with pytest.raises(UsageError, match=rf"Give --max-new-tokens {limit - 10} or less"):
        generate(engine, [Prompt(np.arange(10))], max_new_tokens=limit, **settings)
    with pytest.raises(UsageError, match="Shorten the prompt"):
        generate(engine, [Prompt(np.zeros(limit, np.int64))], max_new_tokens=1, **settings)
    with pytest.raises(UsageError, match="at least 1"):
        generate(engine, [Prompt(np.arange(10))], max_new_tokens=0, **settings)
    with pytest.raises(UsageError, match="--prefill-slice"):
        generate(engine, [Prompt(np.arange(10))], max_new_tokens=1, slice_size=0, **settings)


def test_text_never_opens_the_vision_encoder(tiny_package, prompts):
    fresh = Engine(tiny_package)
    fresh.prefill([prompts[1]])
    assert not fresh.graphs.sessions.is_open("vision_encoder")
    fresh.prefill([prompts[0]])
    assert fresh.graphs.sessions.is_open("vision_encoder")
