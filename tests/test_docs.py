"""The pages: links lead somewhere, and the README names every command."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from qwen_export.cli.app import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", [page.relative_to(ROOT).as_posix() for page in PAGES])
def test_links_lead_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    targets = {link.partition("#")[0] for link in LINK.findall((ROOT / page).read_text(encoding="utf-8"))}
    broken = [target for target in targets if target and "://" not in target and not (folder / target).exists()]
    assert not broken


def test_the_readme_names_every_command() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [name for name in COMMANDS if f"`{name}`" not in text]


@pytest.mark.full
def test_the_list_of_files_is_fresh() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "list_files.py"), "--check"], check=False)
    assert done.returncode == 0, "run scripts/list_files.py"
