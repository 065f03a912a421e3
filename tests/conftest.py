"""Fixtures shared by all rooms."""

from __future__ import annotations

from pathlib import Path

import pytest

from qwen_export.checkpoint import load_config
from qwen_export.checkpoint.synth import synthesise


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic checkpoint of configs/tiny.json in the official, sharded layout. Read only: copy it to change it."""
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    synthesise(folder, load_config("tiny"))
    return folder
