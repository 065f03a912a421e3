"""A static KV cache in GenAI: its length limits the context, and sharing all buffers changes nothing."""

from __future__ import annotations

import json

import pytest

from qwen_export.export import export_vlm
from qwen_export.genai import add_genai_files, check_genai
from qwen_export.package import Package, open_package
from qwen_export.recipe import Recipe
from qwen_export.runtime.genai import CONFIG_FILE
from tests.genai.altered_package import alter

LENGTH = 128


@pytest.fixture(scope="module")
def static_package(tmp_path_factory, tiny_checkpoint) -> Package:
    folder = tmp_path_factory.mktemp("genai-static") / "package"
    export_vlm(tiny_checkpoint, folder, recipe=Recipe(dtype="fp32", target="cpu", kv_cache="static", max_length=LENGTH))
    add_genai_files(folder)
    return open_package(folder)


def test_the_cache_limits_the_context(static_package):
    model = json.loads((static_package.folder / CONFIG_FILE).read_text(encoding="utf-8"))["model"]
    assert model["context_length"] == LENGTH
    report = check_genai(static_package, threads=1)
    assert report.ok, report.headline
    assert len(report.cases) == 5
    assert any("longer text: left out" in note for note in report.notes)


def test_all_states_shared_give_the_same_answers(static_package):
    """With this option GenAI reads and writes KV, conv and recurrent states in one buffer each."""
    alter(static_package.folder, CONFIG_FILE, lambda config: config["search"].update(past_present_share_buffer=True))
    report = check_genai(open_package(static_package.folder), threads=1)
    assert report.ok, "; ".join(map(str, report.cases))
