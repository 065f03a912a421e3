"""Write docs/files.md: every source file with the first line of its docstring. `--check` only compares."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "files.md"
FOLDERS = ("qwen_export", "patches", "configs", "scripts", "examples")
HEAD = """# Files

Every source file and its job, in its own words. Written by `scripts/list_files.py`.
"""


def job(file: Path) -> str:
    """First sentence of a module's docstring, or the first comment of a shell script."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".sh":
        comments = [line.lstrip("# ") for line in text.splitlines() if line.startswith("# ")]
        return " ".join(comments).partition(". ")[0].rstrip(".") + "."
    paragraph = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
    return " ".join(paragraph.split("\n"))


def tracked() -> list[Path]:
    """The files git knows: somebody's half-made file beside them is not part of the page."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / line for line in listed.splitlines() if line.endswith((".py", ".sh")) and (ROOT / line).is_file()]


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    everything = tracked()
    for folder in FOLDERS:
        files = [file for file in everything if (ROOT / folder) in file.parents]
        for parent in sorted({file.parent for file in files}):
            parts.append(f"\n## {parent.relative_to(ROOT).as_posix()}/\n")
            inside = sorted(file for file in files if file.parent == parent)
            parts += [f"- `{file.name}` {job(file)}" for file in inside]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(TARGET.read_text(encoding="utf-8") != page())
    TARGET.write_text(page(), encoding="utf-8", newline="\n")
