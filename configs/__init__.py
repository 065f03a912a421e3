"""Model configs in Transformers' own format, shipped as data and found by name: `tiny`, `mid`, `qwen3.8-27b`."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from qwen_export.errors import UsageError


def config_names() -> tuple[str, ...]:
    """Names that `find_config` knows, sorted."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json")))


def find_config(name_or_file: str) -> dict[str, Any]:
    """Content of a config named by `config_names`, or of any JSON file."""
    if name_or_file in config_names():
        text = resources.files(__name__).joinpath(f"{name_or_file}.json").read_text(encoding="utf-8")
    elif Path(name_or_file).is_file():
        try:
            text = Path(name_or_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{name_or_file} cannot be read: {error}.") from None
    else:
        raise UsageError(f"No config {name_or_file!r}: it is neither a file nor one of {', '.join(config_names())}.")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{name_or_file} is not JSON: {error}.") from None
