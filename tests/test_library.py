"""The public names are functions, whatever was imported before, and loading one imports nothing it does not need."""

from __future__ import annotations

import subprocess
import sys

import pytest

import qwen_export

NAMES = [name for name in qwen_export.__all__ if name != "__version__"]
WITHOUT_TORCH = [name for name in NAMES if not name.startswith("export_")]


def python(code: str) -> str:
    """stdout of a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_names_stay_functions_whatever_is_imported_around_them() -> None:
    code = (
        "import importlib, pkgutil, qwen_export\n"
        "for entry in pkgutil.iter_modules(qwen_export.__path__):\n"
        "    if entry.name != '__main__':\n"
        "        importlib.import_module(f'qwen_export.{entry.name}')\n"
        f"print([name for name in {NAMES!r} if not callable(getattr(qwen_export, name))])"
    )
    assert python(code) == "[]"


def test_looking_imports_nothing() -> None:
    assert python("import sys, qwen_export; dir(qwen_export); print('numpy' in sys.modules)") == "False"


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_these_names_load_without_torch(name: str) -> None:
    code = f"import sys, qwen_export; qwen_export.{name}; print('torch' in sys.modules)"
    assert python(code) == "False"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_verb"):
        qwen_export.no_such_verb  # noqa: B018
