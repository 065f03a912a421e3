"""Find what `--checkpoint` and `--config` name: a folder, a hub repository, a config file, a config of ours."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from textwrap import shorten
from typing import Any

from qwen_export.errors import CheckpointError, UsageError
from qwen_export.model_config import ModelConfig, read_config

ASSET_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "merges.txt",
    "vocab.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
"""The files beside the weights that a package carries on, byte for byte. Never code."""
_WEIGHT_PATTERNS = ("*.safetensors", "*.safetensors.index.json")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def find_folder(checkpoint: str | Path, revision: str | None = None) -> Path:
    """The folder of a checkpoint: as given, or from the hub (its cache first when there is no network)."""
    folder = Path(checkpoint).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise UsageError(f"--revision belongs to a hub id, but {folder} is a folder. Leave it out.")
        return folder
    if folder.exists():
        raise CheckpointError(f"{folder} is a file. Give the folder of the checkpoint that it lies in.")
    return _download(str(checkpoint), revision, (*ASSET_FILES, *_WEIGHT_PATTERNS))


def config_names() -> tuple[str, ...]:
    """Names of the configs that come with this project."""
    files = resources.files("qwen_export.configs").iterdir()
    return tuple(sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json")))


def open_config(name_or_path: str | Path, revision: str | None = None) -> ModelConfig:
    """A model config without weights: a config file, a checkpoint folder, a config of ours by name, or a hub id."""
    path = Path(name_or_path).expanduser()
    if path.is_file() or (path / "config.json").is_file():
        return read_config(path)
    name = str(name_or_path)
    if name in config_names():
        text = resources.files("qwen_export.configs").joinpath(f"{name}.json")
        with resources.as_file(text) as file:
            return read_config(file)
    if path.is_dir():
        return read_config(path)
    ours = f"It is not one of the configs {', '.join(config_names())} either."
    return read_config(_download(name, revision, ("config.json",), ours))


def load_config(name_or_path: str | Path) -> dict[str, Any]:
    """Content of a `config.json` for `synthesise`: a file, a folder, or a config of ours by name."""
    return open_config(name_or_path).raw


def revision_of(folder: Path) -> str | None:
    """The commit that a folder of the hub cache is named by, links followed; None elsewhere."""
    for path in (folder, folder.resolve()):
        if path.parent.name == "snapshots" and _COMMIT.fullmatch(path.name):
            return path.name
    return None


def _download(name: str, revision: str | None, patterns: tuple[str, ...], ours: str = "") -> Path:
    where = f"{name!r}" + (f" at revision {revision!r}" if revision else "")
    if not _REPOSITORY.fullmatch(name):
        raise CheckpointError(f"There is no folder {name!r}, and it is no hub id (OWNER/NAME). {ours}".rstrip())
    # Costs a quarter of a second and is needed for hub ids alone.
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
    except Exception as error:  # the HTTP library, and so its errors, differ between versions of huggingface_hub
        reason = shorten(str(error), width=160, placeholder=" ...") or "no reason given"
        raise CheckpointError(
            f"There is no folder {name!r}, and the hub repository {where} is neither in the local cache nor "
            f"reachable ({type(error).__name__}: {reason}). {ours}".rstrip()
        ) from None
