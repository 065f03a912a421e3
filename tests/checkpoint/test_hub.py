"""Hub ids: from the local cache without a network, and only the files that are needed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.constants
import pytest
from huggingface_hub.utils import filter_repo_objects

from qwen_export.checkpoint import open_config, open_snapshot
from qwen_export.contract import COMPONENTS
from qwen_export.errors import CheckpointError, UsageError

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def offline_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Path) -> Path:
    """A hub cache that holds owner/tiny at two commits; the older one under the branch `old`. No network."""
    cache = tmp_path / "hub"
    repository = cache / "models--owner--tiny"
    for commit, branch in ((OLD, "old"), (NEW, "main")):
        shutil.copytree(tiny_checkpoint, repository / "snapshots" / commit)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / branch).write_text(commit, encoding="utf-8")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return cache


@pytest.mark.parametrize(("revision", "commit"), [(None, NEW), ("main", NEW), ("old", OLD), (OLD, OLD)])
def test_a_cached_revision_is_opened(offline_cache: Path, revision: str | None, commit: str) -> None:
    snapshot = open_snapshot("owner/tiny", revision=revision)
    snapshot.check(COMPONENTS)
    assert snapshot.revision == commit
    assert snapshot.folder == offline_cache / "models--owner--tiny" / "snapshots" / commit


def test_a_cache_that_lacks_a_shard(offline_cache: Path) -> None:
    folder = offline_cache / "models--owner--tiny" / "snapshots" / NEW
    (folder / "model-00002-of-00004.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00004\.safetensors is missing"):
        open_snapshot("owner/tiny")


@pytest.mark.parametrize(("name", "revision"), [("owner/absent", None), ("owner/tiny", "nowhere"), ("absent", None)])
def test_neither_folder_nor_cached_nor_reachable(offline_cache: Path, name: str, revision: str | None) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_snapshot(name, revision=revision)
    says = str(caught.value)
    assert f"There is no folder '{name}'" in says and "neither in the local cache nor reachable" in says
    assert "\n" not in says and (revision is None or revision in says)


@pytest.mark.parametrize("name", ["./checkpoints/gone", "a/b/c", "/gone/away", "C:\\models\\gone", "", "--output"])
def test_a_path_that_is_not_there_is_not_looked_up(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: pytest.fail("asked the hub"))
    if name == "":
        return  # the empty path is the working folder
    with pytest.raises(CheckpointError, match="no hub id"):
        open_snapshot(name)


def test_only_what_is_needed_is_downloaded(monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Path) -> None:
    asked: dict[str, Any] = {}

    def fake(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(tiny_checkpoint)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    open_snapshot("owner/tiny", revision="v1")
    assert (asked["name"], asked["revision"]) == ("owner/tiny", "v1")
    wanted = [*(file.name for file in tiny_checkpoint.iterdir()), "merges.txt", "model.safetensors"]
    other = ["modeling_qwen.py", "README.md", "pytorch_model.bin", "model.gguf", "tokenizer.py", "x/y.onnx"]
    got = set(filter_repo_objects([*wanted, *other], allow_patterns=asked["allow_patterns"]))
    assert got == set(wanted)


def test_graphs_alone_need_the_config_alone(monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Path) -> None:
    asked: list[list[str]] = []

    def fake(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(tiny_checkpoint)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    assert open_config("owner/tiny").text.vocab_size == 512
    assert asked == [["config.json"]]


def test_a_revision_of_a_folder_makes_no_sense(tiny_checkpoint: Path) -> None:
    with pytest.raises(UsageError, match="--revision belongs to a hub id"):
        open_snapshot(tiny_checkpoint, revision="main")


def test_a_file_is_no_checkpoint(tiny_checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="is a file"):
        open_snapshot(tiny_checkpoint / "config.json")
