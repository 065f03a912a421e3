"""The house rules, each held by a test. They walk the source; nothing is exported here."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "qwen_export"
# building a graph runs the passes, so tracing stands to the right of them
ROOMS = (
    "checkpoint", "patches", "wrappers", "passes", "tracing", "weights", "package", "runtime", "verify", "evaluate",
    "genai",
)  # fmt: skip
EVERYBODY = {"contract", "bindings", "recipe", "errors", "model_config"}
"""Modules that every room may import."""
PEERS = {"verify", "evaluate", "genai"}
"""Last rooms: each may import every room before them, none imports another."""
STORY = {"export", "cli", "__init__", "__main__"}
"""Above the rooms: the story and the command line."""
FORBIDDEN_STEMS = {"utils", "util", "helpers", "helper", "common", "misc", "tools", "stuff"}
PASS_SECTIONS = ("Before", "After", "Why", "Numerics", "Declines")
NOT_PASSES = {"__init__", "pipeline", "standard_ops"}
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60


def python_files() -> list[Path]:
    """Every Python file of the project, tests and scripts included."""
    folders = ("qwen_export", "patches", "configs", "scripts", "examples", "tests")
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def module_name(file: Path) -> str:
    """Dotted name of a source file, as it is imported."""
    relative = file.relative_to(ROOT)
    parts = relative.with_suffix("").parts
    if parts[0] in ("patches", "configs"):
        parts = ("qwen_export", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_files() -> list[Path]:
    """Every file that is imported as part of `qwen_export`."""
    return sorted([*SOURCE.rglob("*.py"), *(ROOT / "patches").rglob("*.py"), *(ROOT / "configs").rglob("*.py")])


def imported_modules(file: Path) -> Iterator[str]:
    """Modules a file imports anywhere, in functions too; relative imports made absolute."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} imports relatively; write the full name"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(module: str) -> str | None:
    """`qwen_export.passes.x` -> `passes`; None for other packages and for the top package itself."""
    parts = module.split(".")
    return parts[1] if parts[0] == "qwen_export" and len(parts) > 1 else None


def names(files: list[Path]) -> list[str]:
    return [file.relative_to(ROOT).as_posix() for file in files]


@pytest.mark.parametrize("path", names(package_files()))
def test_a_room_imports_only_earlier_rooms(path: str) -> None:
    own = room_of(module_name(ROOT / path))
    if own is None or own in STORY:
        return
    known = {*ROOMS, *EVERYBODY, "configs"}
    assert own in known, f"{path} belongs to no room; name it in ROOMS if it is one"
    for module in imported_modules(ROOT / path):
        other = room_of(module)
        if other is None or other == own or other not in known:
            assert other not in STORY - {"__init__"}, f"{path} imports {module}, which lies above the rooms"
            continue
        if own in EVERYBODY:
            assert other in EVERYBODY, f"{path} is used by every room and imports {module}"
        elif other in ROOMS:
            assert not (own in PEERS and other in PEERS), f"{path} imports its peer {module}"
            assert ROOMS.index(other) < ROOMS.index(own), f"{path} imports the later room {module}"


@pytest.mark.parametrize("room", ["checkpoint", "weights", "package", "runtime", "cli"])
def test_these_rooms_never_import_torch(room: str) -> None:
    for file in [*(SOURCE / room).rglob("*.py"), *SOURCE.glob(f"{room}.py")]:
        guilty = [module for module in imported_modules(file) if module.split(".")[0] in ("torch", "torchvision")]
        assert not guilty, f"{file.relative_to(ROOT)} imports {guilty}"


@pytest.mark.parametrize("path", names(python_files()))
def test_files_and_functions_are_short(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_FILE_LINES, f"{path} is longer than {MAX_FILE_LINES} lines; split it by idea"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{path}:{node.lineno} {node.name} has {length} lines"


def test_names_say_what_is_inside() -> None:
    bad = [path for path in names(python_files()) if Path(path).stem in FORBIDDEN_STEMS]
    assert not bad, f"name these after their idea: {bad}"


def test_no_folder_for_a_single_file() -> None:
    folders = {file.parent for file in SOURCE.rglob("*.py")} - {SOURCE}
    for folder in folders:
        inside = [entry for entry in folder.iterdir() if entry.suffix == ".py" and entry.stem != "__init__"]
        inside += [entry for entry in folder.iterdir() if entry.is_dir() and any(entry.glob("*.py"))]
        assert len(inside) > 1, f"{folder.relative_to(ROOT)} holds one file; make it a module"


@pytest.mark.parametrize("path", names(package_files()))
def test_every_module_says_its_job(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), f"{path} has no docstring"


def pass_files() -> list[str]:
    files = (SOURCE / "passes").glob("*.py")
    return names(sorted(file for file in files if file.stem not in NOT_PASSES))


@pytest.mark.parametrize("path", pass_files())
def test_a_pass_documents_itself_and_is_tested(path: str) -> None:
    file = ROOT / path
    tree = ast.parse(file.read_text(encoding="utf-8"))
    text = ast.get_docstring(tree) or ""
    missing = [section for section in PASS_SECTIONS if not re.search(rf"^{section}\b", text, re.MULTILINE)]
    assert not missing, f"{path}: the docstring lacks {missing}"
    test = ROOT / "tests" / "passes" / f"test_{file.stem}.py"
    assert test.exists(), f"{path} has no {test.relative_to(ROOT).as_posix()}"


def test_the_package_list_is_whole() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    found = {module_name(file) for file in package_files() if file.name == "__init__.py"}
    assert set(settings["packages"]) == found
    with_modules = {file.parent for file in package_files()}
    assert all((folder / "__init__.py").exists() for folder in with_modules), "a folder of modules lacks __init__.py"


HIDE_POSIX = """
import importlib, os, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in {"fcntl", "resource", "pwd", "grp", "termios"}:
            raise ModuleNotFoundError(f"No module named {name!r} (hidden)", name=name)

import torch, transformers  # what they import for themselves is not ours to hide
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Hidden())
for name in ("mkfifo", "statvfs", "getuid", "geteuid", "posix_fadvise", "sched_getaffinity", "fork", "posix_fallocate"):
    if hasattr(os, name):
        delattr(os, name)
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_every_module_imports_where_posix_is_missing() -> None:
    modules = [module_name(file) for file in package_files()]
    modules = [name for name in modules if not name.endswith("__main__")]
    done = subprocess.run(
        [sys.executable, "-c", HIDE_POSIX, *modules], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


MACHINE_PATHS = re.compile(
    "|".join(("/ho" + r"me/\w", "/ro" + r"ot/\w", "/wo" + "rk/", "/Us" + r"ers/\w", r"[A-Z]:\\Us" + "ers"))
)
REGISTRY_HOSTS = re.compile(
    "|".join(
        ("py" + r"pi\.org", "python" + r"hosted\.org", "download" + r"\.pytorch", "index" + "-url", "artifac" + "tory")
    )
)


def tracked_files() -> list[str]:
    """Files git knows; none in an unpacked archive, where there is nothing to leak any more."""
    done = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=False)
    return [path for path in done.stdout.split("\0") if path and (ROOT / path).is_file()]


def test_no_machine_path_or_registry_host_is_tracked() -> None:
    for path in tracked_files():
        content = (ROOT / path).read_bytes()
        if b"\0" in content[:4096]:
            continue
        text = content.decode("utf-8", errors="replace")
        for pattern in (MACHINE_PATHS, REGISTRY_HOSTS):
            found = pattern.search(text)
            assert not found, f"{path} holds {found.group(0)!r}"
