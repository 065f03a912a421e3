"""Packages of the tiny checkpoint, and references of a few cases; a whole suite runs where acceptance needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from qwen_export import export_vlm
from qwen_export.checkpoint import open_snapshot
from qwen_export.package import open_package
from qwen_export.recipe import Recipe
from qwen_export.verify import collect as collecting
from tests.verify.few_cases import few_plans


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """These tensors are small: a second thread costs more than it gives."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def packages(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Exports of the tiny checkpoint by dtype, each made once. Read only: copy one to damage it."""
    folder, made = tmp_path_factory.mktemp("packages"), {}

    def package(dtype: str) -> Path:
        if dtype not in made:
            made[dtype] = folder / dtype
            export_vlm(tiny_checkpoint, made[dtype], recipe=Recipe(dtype=dtype))
        return made[dtype]

    return package


@pytest.fixture(scope="session")
def references(
    packages: Callable[..., Path], tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Path]]:
    """Saved references of a few cases by dtype, each made once."""
    folder, made = tmp_path_factory.mktemp("references"), {}

    def reference(dtype: str) -> Path:
        if dtype not in made:
            made[dtype] = folder / f"{dtype}.npz"
            opened = open_package(packages(dtype))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(collecting, "plans", few_plans)
                snapshot = open_snapshot(tiny_checkpoint)
                collecting.collect(opened, snapshot, made[dtype], suite="quick", said=lambda name: None)
        return made[dtype]

    yield reference
