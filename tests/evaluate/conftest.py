"""Data sets for the tests of this room."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.evaluate.diagrams import write_dataset


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve questions about drawn diagrams, four row groups."""
    return write_dataset(tmp_path_factory.mktemp("ai2d"), 12)
