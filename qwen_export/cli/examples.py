"""Examples shown at the end of every `--help`, as data: a test pastes each of them into a shell.

They start in an empty folder that holds only the synthetic checkpoint `ckpt`, made by the first example of `synth`.
"""

from __future__ import annotations

LONGEST_LINE = 76
"""No terminal of 80 columns may break an example in two."""

CHECKPOINT = "qwen-export synth ckpt --config tiny"
PACKAGE = "qwen-export vlm --checkpoint ckpt --output pkg --dtype fp32"

EXAMPLES: dict[str, tuple[str, ...]] = {
    "run": (
        PACKAGE,
        'qwen-export run pkg --prompt "Name three colours." --max-new-tokens 8',
        'qwen-export run pkg --prompt "Hello" --max-new-tokens 4 --json',
    ),
    "synth": (
        CHECKPOINT,
        "qwen-export synth big --config qwen3.8-27b --plan",
    ),
}


def epilog(name: str) -> str:
    """The closing lines of a command's help."""
    heading = "Examples" if name == "synth" else f"Examples, after: {CHECKPOINT}"
    return "\n\n".join((heading, *EXAMPLES[name]))
