"""Examples shown at the end of every `--help`, as data: a test pastes each of them into a shell.

They start in an empty folder that holds only the synthetic checkpoint `ckpt`, made by the first example of `synth`.
Lines stay under 76 characters so that no terminal of 80 columns breaks them.
"""

from __future__ import annotations

CHECKPOINT = "qwen-export synth ckpt --config tiny"
PACKAGE = "qwen-export vlm --checkpoint ckpt --output pkg --dtype fp32"

EXAMPLES: dict[str, tuple[str, ...]] = {
    "synth": (
        CHECKPOINT,
        "qwen-export synth big --config qwen3.8-27b --plan",
    ),
    "vlm": (
        PACKAGE,
        "qwen-export vlm --checkpoint ckpt --output graphs --graph-only --json",
    ),
    "text": (
        "qwen-export text --checkpoint ckpt --output text-pkg --dtype fp32",
        "qwen-export text --checkpoint ckpt --output text-all --logits all",
    ),
    "vision-encoder": (
        PACKAGE,
        "qwen-export vision-encoder --checkpoint ckpt --output pkg",
    ),
    "embedding": (
        PACKAGE,
        "qwen-export embedding --checkpoint ckpt --output pkg",
    ),
    "decoder": (
        PACKAGE,
        "qwen-export decoder --checkpoint ckpt --output pkg --logits all",
    ),
    "bind": (
        "qwen-export vlm --checkpoint ckpt --output graphs --graph-only",
        "qwen-export bind graphs --checkpoint ckpt --output bound",
    ),
    "audit": (
        PACKAGE,
        "qwen-export audit pkg",
        "qwen-export audit pkg --deep --json",
    ),
    "inspect": (
        "qwen-export inspect ckpt",
        PACKAGE,
        "qwen-export inspect pkg --json",
    ),
    "diff": (
        PACKAGE,
        "qwen-export vlm --checkpoint ckpt --output other --dtype fp32",
        "qwen-export diff pkg other",
    ),
    "run": (
        PACKAGE,
        'qwen-export run pkg --prompt "Name three colours." --max-new-tokens 8',
        'qwen-export run pkg --prompt "Hello" --max-new-tokens 4 --json',
    ),
}


def epilog(name: str) -> str:
    """The closing lines of a command's help."""
    heading = "Examples" if name == "synth" else f"Examples, after: {CHECKPOINT}"
    return "\n\n".join((heading, *EXAMPLES[name]))
