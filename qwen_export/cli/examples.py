"""Examples shown at the end of every `--help`, as data: a test pastes each of them into a shell.

They start in a folder that holds the synthetic checkpoint `ckpt`, made by the first example of `synth`, and can be
pasted again: `--overwrite` replaces nothing but packages.
"""

from __future__ import annotations

LONGEST_LINE = 76
"""No terminal of 80 columns may break an example in two."""

CHECKPOINT = "qwen-export synth ckpt --config tiny"
PACKAGE = "qwen-export vlm --checkpoint ckpt --output pkg --dtype fp32 --overwrite"

EXAMPLES: dict[str, tuple[str, ...]] = {
    "vlm": (
        PACKAGE,
        "qwen-export vlm --checkpoint ckpt --output plan --graph-only --overwrite",
    ),
    "text": (
        "qwen-export text --checkpoint ckpt --output text --dtype fp32 --overwrite",
        "qwen-export text --checkpoint ckpt --output text --logits all --overwrite",
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
        "qwen-export vlm --checkpoint ckpt --output graphs --graph-only --overwrite",
        "qwen-export bind graphs --checkpoint ckpt --output bound --overwrite",
    ),
    "audit": (
        PACKAGE,
        "qwen-export audit pkg",
        "qwen-export audit pkg --deep --json",
    ),
    "verify": (
        PACKAGE,
        "qwen-export verify pkg --checkpoint ckpt --save-reference truth.npz",
        "qwen-export verify pkg --reference truth.npz --report verify.html",
    ),
    "inspect": (
        "qwen-export inspect ckpt",
        PACKAGE,
        "qwen-export inspect pkg --layers",
        "qwen-export inspect pkg --json",
    ),
    "diff": (
        PACKAGE,
        "qwen-export vlm --checkpoint ckpt --output two --dtype fp32 --overwrite",
        "qwen-export diff pkg two --format markdown",
    ),
    "baseline": (
        PACKAGE,
        "qwen-export baseline pkg -o baseline.json",
        "qwen-export diff baseline.json pkg --fail-on operators",
    ),
    "genai": (
        PACKAGE,
        "qwen-export genai pkg",
        "qwen-export genai pkg --json",
    ),
    "genai-check": (
        PACKAGE,
        "qwen-export genai pkg",
        "qwen-export genai-check pkg --provider cpu",
    ),
    "run": (
        PACKAGE,
        'qwen-export run pkg --prompt "Name three colours." --max-new-tokens 8',
        'qwen-export run pkg --prompt "Hello" --max-new-tokens 4 --json',
    ),
    "evaluate": (
        PACKAGE,
        "qwen-export evaluate ai2d pkg --data ai2d --limit 4 --resume",
        "qwen-export evaluate ai2d --rescore ai2d-evaluation --output rescored",
    ),
    "synth": (
        CHECKPOINT,
        "qwen-export synth big --config qwen3.8-27b --plan",
    ),
}


def epilog(name: str) -> str:
    """The closing lines of a command's help."""
    heading = "Examples" if name == "synth" else f"Examples, after: {CHECKPOINT}"
    if name == "evaluate":
        heading += ", and with lmms-lab-encoder/ai2d in the folder ai2d"
    return "\n\n".join((heading, *EXAMPLES.get(name, ())))
