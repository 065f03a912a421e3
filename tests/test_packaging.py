"""The wheel holds everything that is imported or read, under one top-level name."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

USE_THE_WHEEL = """
import sys
sys.path[:0] = [sys.argv[1]]
sys.path.append(sys.argv[2])  # the dependencies, without the editable install: -S reads no .pth file
import qwen_export, qwen_export.patches
from qwen_export.checkpoint import config_names, load_config
from qwen_export.checkpoint.synth import synthesise
assert qwen_export.__file__.startswith(sys.argv[1]), qwen_export.__file__
assert qwen_export.patches.__file__.startswith(sys.argv[1])
assert {"tiny", "mid", "qwen3.8-27b"} <= set(config_names())
synthesise(sys.argv[3], load_config("tiny"))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy, so that nothing stale of the checkout gets in."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    for name in ("qwen_export", "patches", "configs", "tests", "scripts"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    output = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(output),
        ".",
    ]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = output.glob("*.whl")
    return file


def test_one_top_level_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"qwen_export"}
    assert len(tops) == 2


def test_every_source_and_data_file_is_in(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    wanted = set()
    for folder, prefix in (("qwen_export", ""), ("patches", "qwen_export/"), ("configs", "qwen_export/")):
        for file in (ROOT / folder).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts and file.name != "README.md":
                wanted.add(prefix + file.relative_to(ROOT).as_posix())
    assert not wanted - inside, f"not in the wheel: {sorted(wanted - inside)}"
    assert any(name.endswith("licenses/LICENSE") for name in inside)


def test_the_wheel_works_alone(wheel: Path, tmp_path: Path) -> None:
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    done = subprocess.run(
        [sys.executable, "-S", "-c", USE_THE_WHEEL, str(unpacked), sysconfig.get_path("purelib"), str(tmp_path / "c")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "c" / "config.json").exists()
