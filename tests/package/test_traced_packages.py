"""Real traced graphs of the tiny checkpoint as packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qwen_export import Recipe, audit, bind, diff, export_component, export_text, export_vlm
from qwen_export.contract import DECODER, EMBEDDING, VISION_ENCODER
from qwen_export.errors import UpstreamChanged


def test_a_traced_embedding_passes(tiny_checkpoint: Path, tmp_path: Path) -> None:
    result = export_vlm(tiny_checkpoint, tmp_path / "pkg", components=[EMBEDDING])
    assert result.report.ok
    assert audit(tmp_path / "pkg", deep=True).ok


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_whole_packages_pass_their_audit(tiny_checkpoint: Path, tmp_path: Path, dtype: str) -> None:
    recipe = Recipe(dtype=dtype)
    assert export_vlm(tiny_checkpoint, tmp_path / "vlm", recipe=recipe).report.ok
    assert export_text(tiny_checkpoint, tmp_path / "text", recipe=recipe).report.ok
    for name in ("vlm", "text"):
        report = audit(tmp_path / name, deep=True)
        assert report.ok, report.findings
        assert all("::" not in operator for graph in report.inventories.values() for operator in graph)


EXPORT = "import sys, qwen_export; qwen_export.export_vlm(sys.argv[1], sys.argv[2])"


@pytest.mark.full
def test_traced_packages_are_reproducible_and_bind_equals_export(tiny_checkpoint: Path, tmp_path: Path) -> None:
    for name, seed in (("one", "1"), ("two/deep", "2")):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", EXPORT, str(tiny_checkpoint), str(tmp_path / name)]
        subprocess.run(command, check=True, env=environment)
    assert diff(tmp_path / "one", tmp_path / "two" / "deep", deep=True).same
    export_vlm(tiny_checkpoint, tmp_path / "graphs", graph_only=True)
    bind(tmp_path / "graphs", tiny_checkpoint, tmp_path / "bound")
    assert diff(tmp_path / "one", tmp_path / "bound", deep=True).same
    for component in (DECODER, EMBEDDING, VISION_ENCODER):
        export_component(component, tiny_checkpoint, tmp_path / "bound")
    assert diff(tmp_path / "one", tmp_path / "bound", deep=True).same
    assert (tmp_path / "one" / "manifest.json").read_bytes() == (tmp_path / "bound" / "manifest.json").read_bytes()


def test_changed_upstream_stops_before_anything_is_written(tmp_path, monkeypatch):
    def changed() -> None:
        raise UpstreamChanged("l2norm is not the code")

    monkeypatch.setattr("qwen_export.export.check_upstream", changed)
    with pytest.raises(UpstreamChanged):
        export_vlm("tiny", tmp_path / "package", graph_only=True)
    assert not list(tmp_path.iterdir())
