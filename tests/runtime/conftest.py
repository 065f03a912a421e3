from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from qwen_export.export import export_vlm
from qwen_export.package import Package, open_package
from qwen_export.recipe import Recipe
from tests.runtime.odd_pictures import make_broken_pictures, make_odd_pictures


@pytest.fixture(scope="session")
def odd_pictures(tmp_path_factory) -> list[Path]:
    return make_odd_pictures(tmp_path_factory.mktemp("odd"))


@pytest.fixture(scope="session")
def broken_pictures(tmp_path_factory) -> dict[str, Path]:
    return make_broken_pictures(tmp_path_factory.mktemp("broken"))


@pytest.fixture(scope="session")
def export_tiny(tmp_path_factory) -> Callable[[Path], Package]:
    """Exports a checkpoint in float32 for the CPU and opens the package."""

    def export(checkpoint: Path) -> Package:
        output = tmp_path_factory.mktemp("package") / "package"
        export_vlm(checkpoint, output, recipe=Recipe(dtype="fp32", target="cpu"))
        return open_package(output)

    return export


@pytest.fixture(scope="session")
def tiny_package(export_tiny, tiny_checkpoint) -> Package:
    """The tiny synthetic checkpoint as a float32 package."""
    return export_tiny(tiny_checkpoint)
