"""Terminals and pipes as people have them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PLAN = ("synth", "big", "--config", "qwen3.8-27b", "--plan")


def call(*words: str, **changes: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command line in a process of its own, with changes to the environment."""
    environment = {**os.environ, "NO_COLOR": "1", **changes}
    return subprocess.run(
        [sys.executable, "-m", "qwen_export", *words], capture_output=True, env=environment, check=False
    )


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"},
        {"TERM": "dumb"},
        {"COLUMNS": "20"},
        {"FORCE_COLOR": "1", "NO_COLOR": ""},
    ],
    ids=["ascii", "dumb", "narrow", "colour"],
)
@pytest.mark.parametrize("words", [("--help",), PLAN], ids=["help", "plan"])
def test_odd_terminals(environment: dict[str, str], words: tuple[str, ...]) -> None:
    done = call(*words, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""


def test_a_name_the_locale_cannot_show(tmp_path: Path) -> None:
    config = tmp_path / "fehlt-ünïcode-数.json"
    done = call("synth", "x", "--config", str(config), PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C.UTF-8")
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: There is no folder")


def test_the_27b_plan_adds_up() -> None:
    plan = json.loads(call(*PLAN, "--json").stdout)
    assert plan["num_bytes"] == 55_562_855_904
    assert plan["num_shards"] == 18
    assert plan["num_visual_tensors"] == 333


def test_a_mistyped_command_gets_a_suggestion() -> None:
    done = call("synht", COLUMNS="120")
    assert done.returncode == 2
    assert b"synth" in done.stderr.replace(b"synht", b"")
    assert done.stdout == b""


@pytest.mark.parametrize("words", [("synth",), ("synth", "x", "--seed", "many"), ("synth", "x", "--no-such"), ()])
def test_wrong_usage_is_2(words: tuple[str, ...]) -> None:
    done = call(*words)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


def test_version() -> None:
    from qwen_export import __version__

    done = call("--version")
    assert (done.returncode, done.stdout.decode().strip()) == (0, f"qwen-export {__version__}")


@pytest.mark.parametrize("words", [PLAN, (*PLAN, "--json")], ids=["table", "json"])
def test_a_reader_that_left_is_no_error(words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "qwen_export", *words], stdout=writer, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)
    assert done.returncode == 0
    assert done.stderr == b""


def test_an_output_that_exists_is_kept(tmp_path: Path) -> None:
    output = tmp_path / "mine"
    output.mkdir()
    (output / "letter.txt").write_text("dear", encoding="utf-8")
    done = call("synth", str(output))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(b"error: ")
    assert [file.name for file in output.iterdir()] == ["letter.txt"]
