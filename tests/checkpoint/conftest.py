"""Fixtures of the checkpoint room."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwen_export.checkpoint import open_snapshot
from tests.checkpoint.checkpoint_workshop import Stored, Workshop


@pytest.fixture
def workshop(tiny_checkpoint: Path) -> Workshop:
    """The tiny checkpoint taken apart."""
    snapshot = open_snapshot(tiny_checkpoint)
    tensors = {}
    for info in snapshot.tensors.values():
        with info.file.open("rb") as stream:
            stream.seek(info.start)
            tensors[info.raw_key] = Stored("BF16", list(info.shape), stream.read(info.nbytes))
    return Workshop(tiny_checkpoint, tensors, json.loads((tiny_checkpoint / "config.json").read_text("utf-8")))
