"""Packages of the tiny checkpoint with hand-made graphs, and one cheap copy of each to damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import qwen_export.export as story
from qwen_export.recipe import Recipe
from tests.package import hand_made


@pytest.fixture
def hand_made_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports of this test use hand-made graphs instead of tracing."""
    monkeypatch.setattr(story, "build_graph", hand_made.build_graph)


@pytest.fixture(scope="session")
def finished(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Packages to copy: `vlm`, `graphs` (graph-only), `text`, `decode` (static cache and decode graph)."""
    folder = tmp_path_factory.mktemp("packages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(story, "build_graph", hand_made.build_graph)
        static = Recipe(dtype="fp16", kv_cache="static", max_length=64, decode_graph=True)
        story.export_vlm(tiny_checkpoint, folder / "vlm")
        story.export_vlm(tiny_checkpoint, folder / "graphs", graph_only=True)
        story.export_text(tiny_checkpoint, folder / "text")
        story.export_vlm(tiny_checkpoint, folder / "decode", recipe=static)
    yield {path.name: path for path in folder.iterdir()}


@pytest.fixture
def copy_of(finished: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A private copy of a finished package, to damage."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(finished[name], tmp_path / f"copy-{name}"))

    return copy
