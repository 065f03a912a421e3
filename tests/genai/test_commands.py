"""The commands genai and genai-check, `--runtime ort-genai`, and the chat example."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from qwen_export.cli.app import app
from qwen_export.package import open_package
from qwen_export.runtime.genai import CONFIG_FILE, named_provider, read_genai_config
from tests.genai.altered_package import replace
from tests.runtime.odd_pictures import marker

ROOT = Path(__file__).resolve().parents[2]


def call(*words: object) -> int:
    try:
        app([str(word) for word in words], prog_name="qwen-export")
    except SystemExit as leave:
        return int(leave.code or 0)
    raise AssertionError("the command line always exits")


def test_an_export_for_genai(tiny_checkpoint, tmp_path, capsys):
    package = tmp_path / "package"
    words = ("--checkpoint", tiny_checkpoint, "--output", package, "--dtype", "fp32", "--runtime", "ort-genai")
    assert call("vlm", *words) == 0
    assert named_provider(read_genai_config(open_package(package))) == "cuda"
    # the default target is CUDA, which is not here; the check can be told to go elsewhere
    assert call("genai-check", package, "--provider", "cpu", "--new-tokens", 4, "--threads", 1) == 0
    out = capsys.readouterr().out
    assert "6 prompts answered as by run" in out
    assert call("audit", package, "--deep") == 0


def test_graph_only_is_refused_at_once(tiny_checkpoint, tmp_path, capsys):
    words = ("--checkpoint", tiny_checkpoint, "--output", tmp_path / "package", "--graph-only")
    assert call("vlm", *words, "--runtime", "ort-genai") == 2
    assert "GenAI opens no package without weights" in capsys.readouterr().err
    assert not (tmp_path / "package").exists()


def test_files_are_added_to_an_existing_package(altered, capsys):
    package = altered(CONFIG_FILE, lambda config: None)
    replace(package.folder, CONFIG_FILE, None)
    assert call("genai-check", package.folder) == 2
    assert "qwen-export genai" in capsys.readouterr().err
    assert call("genai", package.folder) == 0
    assert call("genai-check", package.folder, "--new-tokens", 2, "--threads", 1) == 0


def test_a_no_is_exit_code_1_and_json(altered, capsys):
    package = altered(CONFIG_FILE, lambda config: config["model"].update(vision_start_token_id=455))
    assert call("genai-check", package.folder, "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert document["findings"][0]["rule"] == "ids"


def test_json_of_a_yes(genai_package, capsys):
    assert call("genai-check", genai_package.folder, "--new-tokens", 2, "--threads", 1, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is True
    assert all(case["same"] and case["logit_error"] <= 1e-6 for case in document["cases"])


def test_the_chat_example(genai_package, tmp_path):
    marker(120, 90).save(tmp_path / "picture.bmp")
    lines = ["what is red?", f"/image {tmp_path / 'picture.bmp'}", "and here?", "/image missing.png", "this?", "so?"]
    words = [genai_package.folder, "--max-new-tokens", "6"]
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "genai_chat.py", *map(str, words)],
        input="\n".join(lines) + "\n", capture_output=True, text=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 3
    assert "missing.png: there is no such file" in done.stderr
    assert "Traceback" not in done.stderr
