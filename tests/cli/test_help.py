"""`--help`: fast, complete, and every option on a list that changes only on purpose."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.main import get_command

from qwen_export.cli.app import COMMANDS, app
from qwen_export.cli.examples import EXAMPLES, LONGEST_LINE

HEAVY = (
    "torch",
    "transformers",
    "onnx",
    "onnx_ir",
    "onnxscript",
    "onnxruntime",
    "numpy",
    "tokenizers",
    "huggingface_hub",
)

RECIPE = {
    "--recipe",
    "--logits",
    "--target",
    "--chunk-size",
    "--residual",
    "--kv-cache",
    "--max-length",
    "--decode-graph",
}
REPORTS = {"--json", "--verbose"}
WHOLE = {
    "--checkpoint",
    "--revision",
    "--output",
    "--dtype",
    *RECIPE,
    "--runtime",
    "--graph-only",
    "--overwrite",
    *REPORTS,
}
COMPONENT = {"--checkpoint", "--revision", "--output", *RECIPE, *REPORTS}

OPTIONS = {
    "vlm": WHOLE,
    "text": WHOLE,
    "vision-encoder": COMPONENT,
    "embedding": COMPONENT,
    "decoder": COMPONENT,
    "bind": {"GRAPHS", "--checkpoint", "--revision", "--output", "--overwrite", *REPORTS},
    "audit": {"PKG", "--graph-only", "--deep", *REPORTS},
    "verify": {
        "PKG",
        "--checkpoint",
        "--reference",
        "--save-reference",
        "--suite",
        "--provider",
        "--bisect",
        "--deep",
        "--report",
        *REPORTS,
    },
    "inspect": {"CHECKPOINT|PKG", "--revision", "--layers", *REPORTS},
    "diff": {"A", "B", "--fail-on", "--format", "--recipe", "--deep", *REPORTS},
    "baseline": {"PKG", "--output", *REPORTS},
    "genai": {"PKG", *REPORTS},
    "genai-check": {"PKG", "--provider", "--new-tokens", "--threads", *REPORTS},
    "run": {
        "PKG",
        "--prompt",
        "--image",
        "--video",
        "--fps",
        "--system",
        "--thinking",
        "--max-new-tokens",
        "--provider",
        "--device",
        "--threads",
        "--temperature",
        "--top-k",
        "--top-p",
        "--seed",
        "--max-pixels",
        "--min-pixels",
        "--prefill-slice",
        "--interactive",
        "--json",
        "--verbose",
    },
    "evaluate": {
        "TASK",
        "PKG",
        "--data",
        "--output",
        "--reference",
        "--revision",
        "--reference-dtype",
        "--reference-device",
        "--runtime",
        "--provider",
        "--device",
        "--threads",
        "--indices",
        "--limit",
        "--shard",
        "--resume",
        "--rescore",
        *REPORTS,
    },
    "synth": {"OUT", "--config", "--seed", "--plan", "--json", "--verbose"},
}
"""Frozen: an option is added here and in the documentation, or it belongs in the recipe file."""


def help_of(*words: str, width: int = 80) -> str:
    """What a user sees, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "qwen_export", *words, "--help"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "COLUMNS": str(width), "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
        check=True,
    )
    return done.stdout


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom qwen_export.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_help_answers_at_once() -> None:
    seconds = []
    for _ in range(3):
        before = os.times()
        help_of()
        after = os.times()  # processor time: the wall clock of a busy machine says nothing
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert min(seconds) < 0.6, seconds


def test_every_command_is_listed_with_examples() -> None:
    listing = help_of()
    assert set(EXAMPLES) == set(COMMANDS)
    for name in COMMANDS:
        assert f" {name} " in listing


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_examples_on_unbroken_lines(name: str) -> None:
    text = help_of(name)
    lines = [line.strip() for line in text.splitlines()]
    assert len(EXAMPLES[name]) >= 2
    for example in EXAMPLES[name]:
        assert len(example) <= LONGEST_LINE
        assert example in lines, f"{example!r} is missing or broken in two"
    assert [line for line in lines if line][-1] == EXAMPLES[name][-1]


def test_the_list_of_options_is_frozen() -> None:
    group = get_command(app)
    assert set(group.commands) == set(COMMANDS)  # type: ignore[attr-defined]
    found = {}
    for name, one in group.commands.items():  # type: ignore[attr-defined]
        options = {option for parameter in one.params for option in parameter.opts if option.startswith("--")}
        arguments = {str(parameter.metavar) for parameter in one.params if not parameter.opts[0].startswith("-")}
        found[name] = options | arguments
    assert found == OPTIONS
