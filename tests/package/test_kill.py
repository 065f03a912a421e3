"""SIGKILL at any moment: the earlier package or the new one is there and whole, and the next command tidies up."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qwen_export.package import audit, open_package

EXPORT = """
import sys
sys.path.insert(0, sys.argv[1])
import hand_made
import qwen_export.export as story
from qwen_export.recipe import Recipe
story.build_graph = hand_made.build_graph
print("ready", flush=True)
for logits in ("all", "last") * 50:
    story.export_vlm(sys.argv[2], sys.argv[3], recipe=Recipe(dtype="fp16", logits=logits), overwrite=True)
"""
MOMENTS = 5


def killed(checkpoint: Path, package: Path, after: float) -> None:
    """Export over the package again and again; SIGKILL so many seconds after an export has begun to write."""
    before = sorted(package.parent.iterdir())
    command = [sys.executable, "-c", EXPORT, str(Path(__file__).parent), str(checkpoint), str(package)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        patience = time.monotonic() + 60
        while sorted(package.parent.iterdir()) == before and time.monotonic() < patience:
            time.sleep(0.001)
        time.sleep(after)
        process.kill()


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
def test_a_kill_leaves_one_whole_package(finished: dict[str, Path], tiny_checkpoint: Path, tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    shutil.copytree(finished["vlm"], package)
    mine = tmp_path / "mine.txt"
    mine.write_text("keep", encoding="utf-8")
    moments = random.Random(5)
    seen = set()
    for _ in range(MOMENTS):
        killed(tiny_checkpoint, package, moments.uniform(0.0, 1.0))
        seen.add(tuple(sorted(entry.name.split("-")[0] for entry in tmp_path.iterdir())))
        opened = open_package(package)  # puts back what a kill between the two renames took away
        assert audit(package, deep=True).ok
        manifest = json.loads((package / "manifest.json").read_text(encoding="utf-8"))
        assert opened.recipe.logits == manifest["recipe"]["logits"]
        assert mine.exists()
    assert len(seen) > 1, "no kill met an export at work"


def test_the_next_export_tidies_up(tiny_checkpoint: Path, tmp_path: Path) -> None:
    killed(tiny_checkpoint, tmp_path / "pkg", 0.3)
    script = EXPORT.replace("* 50", "* 1")
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(tiny_checkpoint), str(tmp_path / "pkg")]
    subprocess.run(command, check=True, capture_output=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["pkg"]
    assert audit(tmp_path / "pkg", deep=True).ok
