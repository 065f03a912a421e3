"""The examples of every `--help`, pasted as they are.

CI pastes them into one folder, one process for all; the full run gives every command a fresh folder and a shell.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qwen_export.cli.app import app
from qwen_export.cli.examples import EXAMPLES
from tests.evaluate.diagrams import write_dataset

MAY_DIFFER = {"diff": 1}
"""Exit code of a command's last example where an earlier command has changed `pkg`: the two packages differ then."""


def paste(line: str) -> int:
    """Run one example in this process; torch is imported once for all of them."""
    words = shlex.split(line)
    assert words[0] == "qwen-export"
    try:
        app(words[1:], prog_name="qwen-export")
    except SystemExit as leave:
        return int(leave.code or 0)
    raise AssertionError("the command line always exits")


def test_examples_in_one_folder(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_checkpoint, tmp_path / "ckpt")
    write_dataset(tmp_path / "ai2d", 4)
    done = {"qwen-export synth ckpt --config tiny"}
    for name, lines in EXAMPLES.items():
        for line in lines:
            if line in done:
                continue
            done.add(line)
            expected = MAY_DIFFER.get(name, 0) if line == lines[-1] else 0
            code = paste(line)
            out, err = capsys.readouterr()
            assert code == expected, f"{line}\n{err}"
            assert out.strip(), f"{line} printed nothing"


@pytest.mark.full
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_in_a_fresh_folder(name: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    if name != "synth":
        shutil.copytree(tiny_checkpoint, tmp_path / "ckpt")
    if name == "evaluate":
        write_dataset(tmp_path / "ai2d", 4)
    scripts = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": os.pathsep.join((scripts, os.environ["PATH"]))}
    for line in EXAMPLES[name]:
        done = subprocess.run(
            line, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        assert "Traceback" not in done.stderr
