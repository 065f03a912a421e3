from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest

from qwen_export.checkpoint.synth import synthesise
from tests.runtime.odd_pictures import make_broken_pictures, make_odd_pictures


@pytest.fixture(scope="session")
def odd_pictures(tmp_path_factory) -> list[Path]:
    return make_odd_pictures(tmp_path_factory.mktemp("odd"))


@pytest.fixture(scope="session")
def broken_pictures(tmp_path_factory) -> dict[str, Path]:
    return make_broken_pictures(tmp_path_factory.mktemp("broken"))


@pytest.fixture(scope="session")
def tiny_assets(tmp_path_factory) -> Path:
    """A synthetic tiny checkpoint: tokenizer, template, processor files, config."""
    config = json.loads((resources.files("qwen_export.configs") / "tiny.json").read_text(encoding="utf-8"))
    folder = tmp_path_factory.mktemp("tiny") / "checkpoint"
    synthesise(folder, config)
    return folder
