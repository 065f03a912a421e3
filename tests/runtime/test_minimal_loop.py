"""The example answers like the runtime, and stays short."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qwen_export.runtime.run import run
from tests.runtime.odd_pictures import marker

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "minimal_loop.py"


@pytest.mark.parametrize("size", [(160, 128), (333, 700)])
def test_it_answers_like_the_runtime(tiny_package, tmp_path, size):
    spec = importlib.util.spec_from_file_location("minimal_loop", EXAMPLE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    marker(*size).save(tmp_path / "picture.png")
    text, tokens = module.answer(tiny_package.folder, tmp_path / "picture.png", "What is it?", 24)
    expected = run(tiny_package, prompt="What is it?", images=[tmp_path / "picture.png"], max_new_tokens=24)
    assert tokens == list(expected.tokens)
    assert text == expected.text


def test_it_is_short_and_runs_as_a_script(tiny_package, tmp_path):
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 100
    marker(96, 64).save(tmp_path / "picture.png")
    command = [sys.executable, str(EXAMPLE), str(tiny_package.folder), str(tmp_path / "picture.png"), "Hi?"]
    done = subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", env={**os.environ, "PYTHONIOENCODING": "utf-8"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
