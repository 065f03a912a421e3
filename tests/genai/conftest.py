"""A tiny package with GenAI's files, opened in the real library. Nothing here is skipped where the library installs."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qwen_export.export import export_text, export_vlm
from qwen_export.genai import add_genai_files
from qwen_export.package import Package, open_package
from qwen_export.recipe import Recipe
from qwen_export.runtime.genai import Feeder, open_model

try:
    import onnxruntime_genai  # noqa: F401
except ImportError:
    if platform.machine().lower() in ("x86_64", "amd64") and sys.platform in ("linux", "win32"):
        raise
    collect_ignore_glob = ["test_*.py"]

RECIPE = Recipe(dtype="fp32", target="cpu")


@pytest.fixture(scope="session")
def genai_package(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Package:
    """The tiny synthetic checkpoint in float32 for the CPU, with GenAI's files. Read only."""
    folder = tmp_path_factory.mktemp("genai") / "package"
    export_vlm(tiny_checkpoint, folder, recipe=RECIPE)
    add_genai_files(folder)
    return open_package(folder)


@pytest.fixture(scope="session")
def text_package(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Package:
    """The language model of the same checkpoint alone. Read only."""
    folder = tmp_path_factory.mktemp("genai-text") / "package"
    export_text(tiny_checkpoint, folder, recipe=RECIPE)
    add_genai_files(folder)
    return open_package(folder)


@pytest.fixture(scope="session")
def feeder(genai_package: Package) -> Feeder:
    return Feeder(genai_package)


@pytest.fixture(scope="session")
def model(genai_package: Package) -> Any:
    """`onnxruntime_genai.Model`, opened by folder as any program would."""
    return open_model(genai_package, threads=1)


@pytest.fixture
def altered(genai_package: Package, tmp_path: Path) -> Callable[[str, Callable[[dict], object]], Package]:
    """Copies the package and changes one JSON file of it; the manifest is made to agree."""
    from tests.genai.altered_package import alter

    def change(name: str, edit: Callable[[dict], object]) -> Package:
        folder = tmp_path / "altered"
        if not folder.exists():
            shutil.copytree(genai_package.folder, folder)
        alter(folder, name, edit)
        return open_package(folder)

    return change
