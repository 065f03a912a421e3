"""One file or many, with or without an index, through links; what is missing is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwen_export.checkpoint import open_snapshot
from qwen_export.contract import COMPONENTS
from qwen_export.errors import CheckpointError
from tests.checkpoint.checkpoint_workshop import Stored, Workshop, write_safetensors

INDEX = "model.safetensors.index.json"


def values(folder: Path) -> dict[str, bytes]:
    snapshot = open_snapshot(folder)
    snapshot.check(COMPONENTS)
    return {key: snapshot.array(key).tobytes() for key in snapshot.tensors}


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("name", ["model", "model.safetensors"])
def test_every_layout_gives_the_same_tensors(
    tmp_path: Path, workshop: Workshop, tiny_checkpoint: Path, name: str, index: bool
) -> None:
    wanted = values(tiny_checkpoint)
    assert values(workshop.write(tmp_path / "single")) == wanted
    assert values(workshop.write(tmp_path / "many", shards=3, index=index, name=name)) == wanted


def test_a_single_file_wins_over_an_index_beside_it(tmp_path: Path, workshop: Workshop) -> None:
    folder = workshop.write(tmp_path)
    (folder / INDEX).write_text('{"weight_map": {"x": "gone.safetensors"}}', encoding="utf-8")
    assert open_snapshot(folder).weight_files == (folder / "model.safetensors",)


@pytest.mark.parametrize("index", [True, False])
def test_a_missing_shard_is_named(tmp_path: Path, workshop: Workshop, index: bool) -> None:
    folder = workshop.write(tmp_path, shards=3, index=index)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.safetensors is missing"):
        open_snapshot(folder)


@pytest.mark.parametrize("size", [0, 5, 2000, -1])
def test_a_shortened_shard_is_named(tmp_path: Path, workshop: Workshop, size: int) -> None:
    file = workshop.write(tmp_path, shards=2) / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(CheckpointError, match="model-00002-of-00002"):
        open_snapshot(tmp_path)


def test_an_index_that_puts_a_tensor_into_the_wrong_file(tmp_path: Path, workshop: Workshop) -> None:
    folder = workshop.write(tmp_path, shards=2)
    index = json.loads((folder / INDEX).read_text("utf-8"))
    places = index["weight_map"]
    places["lm_head.weight"] = next(file for file in places.values() if file != places["lm_head.weight"])
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"says that .* holds tensor lm_head.weight, but it is in model-0000"):
        open_snapshot(folder)


def test_an_index_that_promises_a_tensor_no_file_has(tmp_path: Path, workshop: Workshop) -> None:
    folder = workshop.write(tmp_path, shards=2)
    index = json.loads((folder / INDEX).read_text("utf-8"))
    index["weight_map"]["model.language_model.promise"] = "model-00002-of-00002.safetensors"
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(
        CheckpointError, match=r"model\.language_model\.promise, but no file of the checkpoint holds it"
    ):
        open_snapshot(folder)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no index of shards"),
        ("[]", "is no index of shards"),
        ('{"weight_map": 3}', "is no index of shards"),
        ('{"weight_map": {}}', "lists no tensor"),
        ('{"weight_map": {"a": "../elsewhere.safetensors"}}', "no plain file name"),
        ('{"weight_map": {"a": "x\\\\y.safetensors"}}', "no plain file name"),
    ],
)
def test_a_damaged_index(tmp_path: Path, workshop: Workshop, text: str, says: str) -> None:
    folder = workshop.write(tmp_path, shards=2)
    (folder / INDEX).write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=says) as caught:
        open_snapshot(folder)
    assert INDEX in str(caught.value)


def test_a_tensor_in_two_files(tmp_path: Path, workshop: Workshop) -> None:
    folder = workshop.write(tmp_path, shards=2)
    double = {"lm_head.weight": workshop.tensors["lm_head.weight"]}
    key = "model.language_model.norm.weight"
    for file, other in (("1", key), ("2", "lm_head.weight")):
        name = folder / f"model-0000{file}-of-00002.safetensors"
        index = json.loads((folder / INDEX).read_text("utf-8"))["weight_map"]
        tensors = {k: workshop.tensors[k] for k, place in index.items() if place == name.name}
        write_safetensors(name, tensors | double | {other: workshop.tensors[other]})
    with pytest.raises(CheckpointError, match="is in two files"):
        open_snapshot(folder)


def test_shards_of_two_sets_without_an_index(tmp_path: Path, workshop: Workshop) -> None:
    folder = workshop.write(tmp_path, shards=2, index=False)
    write_safetensors(folder / "old-00001-of-00003.safetensors", {"x": Stored("BF16", [1], b"00")})
    with pytest.raises(CheckpointError, match="more than one set"):
        open_snapshot(folder)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([], "Is this the folder of a Hugging Face checkpoint"),
        (["pytorch_model.bin"], "weights in another format"),
        (["model.Q4_K.gguf"], "GGUF"),
        (["adapter_model.safetensors"], "Merge the adapter"),
        (["a.safetensors", "b.safetensors"], "2 files such as a.safetensors"),
    ],
)
def test_a_folder_without_weights(tmp_path: Path, workshop: Workshop, files: list[str], says: str) -> None:
    (workshop.write(tmp_path) / "model.safetensors").unlink()
    for name in files:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(CheckpointError, match=says):
        open_snapshot(tmp_path)


def symlink(link: Path, target: Path | str) -> None:
    try:
        link.symlink_to(target)
    except OSError:
        pytest.skip("this account may not make symbolic links")


def test_links_into_a_cache_and_a_linked_folder(tmp_path: Path, workshop: Workshop, tiny_checkpoint: Path) -> None:
    real = workshop.write(tmp_path / "real", shards=2)
    snapshot = tmp_path / "repo" / "snapshots" / ("0123456789" * 4)
    blobs = tmp_path / "repo" / "blobs"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(real.iterdir()):
        file.rename(blobs / f"blob{number}")
        symlink(snapshot / file.name, f"../../blobs/blob{number}")
    symlink(tmp_path / "shortcut", snapshot)
    wanted = values(tiny_checkpoint)
    for folder in (snapshot, tmp_path / "shortcut"):
        assert values(folder) == wanted
        opened = open_snapshot(folder)
        assert opened.revision == "0123456789" * 4
        assert opened.assets["tokenizer.json"] == folder / "tokenizer.json"
    assert open_snapshot(tiny_checkpoint).revision is None


def test_a_link_whose_target_is_gone(tmp_path: Path, workshop: Workshop) -> None:
    folder = workshop.write(tmp_path, shards=2)
    (folder / "model-00001-of-00002.safetensors").unlink()
    symlink(folder / "model-00001-of-00002.safetensors", "../blobs/absent")
    with pytest.raises(CheckpointError, match=r"model-00001-of-00002\.safetensors is a link whose target is missing"):
        open_snapshot(folder)
