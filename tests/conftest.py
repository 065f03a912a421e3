"""Fixtures shared by all rooms."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qwen_export.checkpoint import load_config
from qwen_export.checkpoint.synth import synthesise
from qwen_export.model_config import ModelConfig, read_config

if TYPE_CHECKING:
    from tests.bound_graph import TinyGraphs

# before torch is imported: the tensors of these tests are small, a second thread costs more than it gives
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic checkpoint of configs/tiny.json in the official, sharded layout. Read only: copy it to change it."""
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    synthesise(folder, load_config("tiny"))
    return folder


@pytest.fixture(scope="session")
def tiny_config(tiny_checkpoint: Path) -> ModelConfig:
    """The facts of configs/tiny.json."""
    return read_config(tiny_checkpoint)


@pytest.fixture(scope="session")
def tiny_upstream(tiny_checkpoint: Path) -> Any:
    """Transformers' own model of the tiny checkpoint: float32, eager attention."""
    import torch
    from transformers import Qwen3_5ForConditionalGeneration

    return Qwen3_5ForConditionalGeneration.from_pretrained(
        tiny_checkpoint, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    ).eval()


@pytest.fixture(scope="session")
def tiny_graphs(tiny_config: ModelConfig, tiny_upstream: Any) -> TinyGraphs:
    """Graphs of the tiny checkpoint with its weights, each built on first use."""
    from tests.bound_graph import TinyGraphs

    return TinyGraphs(tiny_config, tiny_upstream.state_dict())
