"""The feeding helper refuses what GenAI would take without a word and answer wrongly."""

from __future__ import annotations

import numpy as np
import onnxruntime_genai as og
import pytest

from qwen_export.errors import InputError, PackageError, UsageError
from qwen_export.runtime.chat import Chat
from qwen_export.runtime.genai import CONFIG_FILE, Feeder, import_genai, new_tokens, open_model
from qwen_export.runtime.prompt import user_message
from tests.genai.altered_package import replace
from tests.genai.questions import conversation
from tests.runtime.odd_pictures import marker


def test_text_only_package_answers_the_same(text_package):
    feeder, model = Feeder(text_package), open_model(text_package, threads=1)
    assert model.type == "qwen3_5_text"
    for text in ("what is red?", "how many are there, left of the blue circle? " * 12):
        wanted = Chat(text_package, threads=1).ask(text, max_new_tokens=48).tokens
        prompt = feeder.prompt([user_message(text)])
        found = list(new_tokens(feeder.generator(model, prompt, max_new_tokens=48, do_sample=False)))
        assert found == list(wanted)
    with pytest.raises(InputError, match="takes text only"):
        feeder.prompt(conversation("what?", [marker(64, 64)]))


def test_long_prompts_are_fed_in_chunks(altered):
    """search.chunk_size cuts text prompts; the states carry on across the cut."""
    package = altered(CONFIG_FILE, lambda config: config["search"].update(chunk_size=16))
    feeder, model = Feeder(package), open_model(package, threads=1)
    for images in ([], [marker(130, 90), marker(90, 200)]):
        prompt = feeder.prompt(conversation("which part is the red one of how many there are? " * 3, images))
        found = list(new_tokens(feeder.generator(model, prompt, max_new_tokens=24, do_sample=False)))
        chat = Chat(package, threads=1)
        wanted = chat.ask("which part is the red one of how many there are? " * 3, images=images, max_new_tokens=24)
        assert found == list(wanted.tokens)


def test_the_padding_token_in_a_prompt_is_refused(feeder):
    with pytest.raises(InputError, match=r"padding token <\|endoftext\|>"):
        feeder.prompt([user_message("before <|endoftext|> after")])


def test_pictures_in_a_running_generator_are_refused(feeder):
    with pytest.raises(InputError, match="no picture in a running generator"):
        feeder.next_turn(conversation("and this?", [marker(64, 64)])[0])


def test_a_part_without_its_picture_is_refused(feeder):
    with pytest.raises(InputError, match="holds no 'image'"):
        feeder.prompt([{"role": "user", "content": [{"type": "image"}]}])


@pytest.mark.parametrize("new", [0, 5000])
def test_requests_that_do_not_fit_are_refused(new, feeder, model):
    with pytest.raises(UsageError, match="at most 4096 tokens"):
        feeder.generator(model, feeder.prompt([user_message("hello")]), max_new_tokens=new)


def test_no_genai_files_is_one_sentence(genai_package, altered):
    package = altered(CONFIG_FILE, lambda config: None)
    replace(package.folder, CONFIG_FILE, None)
    with pytest.raises(PackageError, match="qwen-export genai"):
        open_model(package)
    with pytest.raises(PackageError, match="qwen-export genai"):
        Feeder(package)


@pytest.mark.skipif(og.is_cuda_available(), reason="this GenAI has CUDA")
def test_cuda_without_cuda_is_one_sentence(genai_package):
    with pytest.raises(UsageError, match="genai-cuda"):
        open_model(genai_package, provider="cuda")


def test_usage_reports_are_switched_off(monkeypatch):
    import_genai.cache_clear()
    called = []
    monkeypatch.setattr(og, "disable_telemetry_events", lambda: called.append(True))
    assert import_genai() is og
    assert called


def test_genai_copies_the_arrays(feeder):
    """The helper's arrays may go away while GenAI computes."""
    array = np.arange(6, dtype=np.int64)
    tensor = og.Tensor(array)
    array[:] = 9
    assert tensor.as_numpy().tolist() == [0, 1, 2, 3, 4, 5]
