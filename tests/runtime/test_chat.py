"""A conversation: kept states, refusals that leave it as it was, and the one-call form."""

from __future__ import annotations

import numpy as np
import pytest

from qwen_export.errors import InputError, PackageError, QwenExportError, UsageError
from qwen_export.export import export_text, export_vlm
from qwen_export.package import open_package
from qwen_export.recipe import Recipe
from qwen_export.runtime.chat import Chat
from qwen_export.runtime.images import InputWarning
from qwen_export.runtime.run import open_chat, run
from qwen_export.runtime.sampling import Sampling
from tests.runtime.odd_pictures import marker


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("pictures") / "marker.png"
    marker(160, 128).save(path)
    return path


def test_run_gives_text_tokens_and_figures(tiny_package, picture):
    pieces: list[str] = []
    answer = run(tiny_package.folder, prompt="What is it?", images=[picture], max_new_tokens=9, on_text=pieces.append)
    assert "".join(pieces) == answer.text
    figures = answer.statistics
    assert figures.new_tokens == len(answer.tokens) <= 9
    assert figures.prompt_tokens > 20
    assert figures.time_to_first_token > 0
    assert figures.tokens_per_second > 0
    assert figures.resident_memory > figures.state_bytes > 0


def test_pictures_and_text_turns_in_one_process_do_not_mix(tiny_package, picture):
    def ask(images):
        return run(tiny_package, prompt="What is it?", images=images, max_new_tokens=12).tokens

    first, text, again = ask([picture]), ask([]), ask([picture])
    assert first == again
    assert text == ask([])
    assert first != text


def test_a_turn_feeds_only_what_is_new(tiny_package, picture):
    chat = Chat(tiny_package)
    first = chat.ask("What is it?", images=[picture], max_new_tokens=5)
    length = chat.state.length
    assert length == first.statistics.prompt_tokens + 4
    second = chat.ask("And now?", max_new_tokens=5)
    cut_off = 0 if first.ended else 1
    assert chat.state.length == length + cut_off + second.statistics.prompt_tokens + 4
    assert second.statistics.prompt_tokens < first.statistics.prompt_tokens


def test_a_failed_turn_leaves_the_conversation(tiny_package, picture):
    chat, other = Chat(tiny_package), Chat(tiny_package)
    for one in (chat, other):
        one.ask("What is it?", images=[picture], max_new_tokens=5)
    with pytest.raises(InputError, match="no such file"):
        chat.ask("This?", images=["missing.png"])
    with pytest.raises(UsageError, match="max-new-tokens"):
        chat.ask("This?", max_new_tokens=10**6)
    assert chat.ask("And now?", max_new_tokens=8).tokens == other.ask("And now?", max_new_tokens=8).tokens


def test_a_failure_while_decoding_leaves_a_growing_cache(tiny_package):
    chat, other = Chat(tiny_package), Chat(tiny_package)
    for one in (chat, other):
        one.ask("Hello", max_new_tokens=5)
    with pytest.raises(ZeroDivisionError):
        chat.ask("Fail", max_new_tokens=50, on_text=lambda piece: 1 // 0)
    assert chat.ask("And now?", max_new_tokens=8).tokens == other.ask("And now?", max_new_tokens=8).tokens


def test_frames_are_reported_before_the_answer(tiny_package, tmp_path):
    for i in range(5):
        marker(96, 64).save(tmp_path / f"{i}.png")
    notes: list[str] = []
    answer = run(tiny_package, prompt="What moves?", video=tmp_path, max_new_tokens=3, on_note=notes.append)
    assert notes == list(answer.notes)
    assert "5 of 5 frames" in notes[0]


def test_system_thinking_and_sampling_change_the_prompt_or_the_answer(tiny_package):
    plain = run(tiny_package, prompt="Hi", max_new_tokens=6)
    system = run(tiny_package, prompt="Hi", system="Be brief.", max_new_tokens=6)
    thinking = run(tiny_package, prompt="Hi", thinking=True, max_new_tokens=6)
    assert len({a.statistics.prompt_tokens for a in (plain, system, thinking)}) == 3
    draws = [run(tiny_package, prompt="Hi", temperature=2.0, seed=s, max_new_tokens=12).tokens for s in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"images": ["missing.png"]}, "missing.png: there is no such file"),
        ({"video": "missing.mp4"}, "missing.mp4"),
        ({"prompt": "Look: <|image_pad|>"}, "1 image placeholder"),
        ({"max_new_tokens": 0}, "--max-new-tokens"),
        ({"max_new_tokens": 10**7}, "--max-new-tokens"),
        ({"max_pixels": 5, "images": ["PICTURE"]}, "--max-pixels"),
        ({"prefill_slice": 0}, "--prefill-slice"),
        ({"temperature": -1}, "--temperature"),
        ({"fps": 2.0}, "--fps belongs to --video"),
        ({"provider": "tpu"}, "Unknown provider"),
    ],
)
def test_bad_requests_get_one_sentence(tiny_package, picture, settings, words):
    settings = {"prompt": "Hi", **settings}
    if settings.get("images") == ["PICTURE"]:
        settings["images"] = [picture]
    with pytest.raises(QwenExportError) as caught:
        run(tiny_package, **settings)
    assert caught.value.exit_code == 2
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_packages_that_cannot_run(tmp_path, tiny_checkpoint):
    with pytest.raises(PackageError, match="There is no package"):
        open_chat(tmp_path / "nothing")
    bare = Recipe(dtype="fp32")
    export_vlm(tiny_checkpoint, tmp_path / "bare", recipe=bare, components=["embedding"], graph_only=True)
    with pytest.raises(PackageError, match="graph-only"):
        open_chat(tmp_path / "bare")


def test_an_animation_warns(tiny_package, tmp_path):
    frames = [marker(64, 64), marker(64, 64).rotate(90)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    with pytest.warns(InputWarning, match="only the first"):
        run(tiny_package, prompt="Hi", images=[tmp_path / "a.gif"], max_new_tokens=1)


@pytest.mark.full
def test_other_kinds_of_package_say_the_same(tiny_package, tiny_checkpoint, picture, tmp_path):
    expected = run(tiny_package, prompt="What is it?", images=[picture], max_new_tokens=24)
    static = Recipe(dtype="fp32", target="cpu", kv_cache="static", max_length=128)
    every = Recipe(dtype="fp32", logits="all", prefill_slice=9)
    for name, recipe in {"static": static, "all": every}.items():
        export_vlm(tiny_checkpoint, tmp_path / name, recipe=recipe)
        chat = open_chat(tmp_path / name)
        assert chat.ask("What is it?", images=[picture], max_new_tokens=24).tokens == expected.tokens, name
    chat = open_chat(tmp_path / "static")
    first = chat.ask("Hello", max_new_tokens=8).tokens
    with pytest.raises(UsageError, match="static cache holds"):
        chat.ask("Hi", max_new_tokens=120)
    assert chat.state is not None
    with pytest.raises(ZeroDivisionError):
        chat.ask("Fail", max_new_tokens=50, on_text=lambda piece: 1 // 0)
    assert chat.ask("Hello", max_new_tokens=8).tokens == first


@pytest.mark.full
def test_a_text_only_package(tiny_package, tiny_checkpoint, picture, tmp_path):
    export_text(tiny_checkpoint, tmp_path / "text", recipe=Recipe(dtype="fp32", target="cpu"))
    text = open_package(tmp_path / "text")
    ours, whole = Chat(text), Chat(tiny_package)
    for question in ("Hello", "And now?"):
        one, other = (chat.ask(question, max_new_tokens=16).tokens for chat in (ours, whole))
        assert one == other
    with pytest.raises(InputError, match="takes text only"):
        ours.ask("What is it?", images=[picture])


@pytest.mark.full
def test_half_precision_runs_on_the_cpu_and_its_state_is_kept(tiny_checkpoint, picture, tmp_path):
    from qwen_export.runtime.state import load_state

    export_vlm(tiny_checkpoint, tmp_path / "half", recipe=Recipe(dtype="fp16", target="cpu"))
    chat = Chat(open_package(tmp_path / "half"), sampling=Sampling())
    assert chat.ask("What is it?", images=[picture], max_new_tokens=6).tokens
    chat.state.save(tmp_path / "state.npz")
    again = load_state(tmp_path / "state.npz", chat.state.specs, chat.state.device).to_host()
    for name, value in chat.state.to_host().items():
        assert np.array_equal(value, again[name])
        assert value.dtype == (np.float32 if "recurrent" in name else np.float16)
    export_vlm(tiny_checkpoint, tmp_path / "bf16", recipe=Recipe(dtype="bf16"))
    with pytest.raises(UsageError, match="no bf16 kernels"):
        open_chat(tmp_path / "bf16")
