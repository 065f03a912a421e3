"""Audit of a package as a whole: the folder, its files, its manifest, its texts."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qwen_export.errors import PackageError
from qwen_export.package import audit
from qwen_export.package.audit.paths import leaked_path
from qwen_export.package.manifest import MANIFEST
from tests.package.damage import DECODER, change_manifest, refresh, rules


@pytest.mark.parametrize("kind", ["vlm", "text", "decode"])
def test_whole_packages_pass(finished: dict[str, Path], kind: str) -> None:
    report = audit(finished[kind], deep=True)
    assert report.findings == ()
    assert report.ok
    assert not report.graph_only
    assert report.headline == "package: audit passes (contents included)"
    graph = "model.onnx" if kind == "text" else DECODER
    assert report.inventories[graph] == {"Identity": 17}
    assert json.loads(json.dumps(report.to_dict()))["ok"]


def test_a_graph_only_package_passes_when_that_is_asked_for(finished: dict[str, Path]) -> None:
    report = audit(finished["graphs"], graph_only=True)
    assert report.ok
    assert report.headline.startswith("graph-only package: audit passes")
    refused = audit(finished["graphs"])
    assert rules(refused) == {"graph-only"}
    assert refused.headline.startswith("graph-only package: audit fails")


def cut(package: Path) -> None:
    file = package / "decoder" / "model.onnx.data"
    file.write_bytes(file.read_bytes()[:-64])


def grow(package: Path) -> None:
    with open(package / "decoder" / "model.onnx.data", "ab") as file:
        file.write(bytes(64))
    refresh(package, "decoder/model.onnx.data")


def flip(package: Path) -> None:
    file = package / "decoder" / "model.onnx.data"
    content = bytearray(file.read_bytes())
    content[1000] ^= 0x40
    file.write_bytes(content)


def link(package: Path) -> None:
    (package / "config.json").rename(package.parent / "config.json")
    (package / "config.json").symlink_to(package.parent / "config.json")


def add_file(name: str, content: str = "{}") -> Callable[[Path], None]:
    def change(package: Path) -> None:
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_text(content, encoding="utf-8")

    return change


def listed_file(name: str, content: str) -> Callable[[Path], None]:
    def change(package: Path) -> None:
        add_file(name, content)(package)
        refresh(package, name)

    return change


def other_config(package: Path) -> None:
    config = json.loads((package / "config.json").read_text(encoding="utf-8"))
    config["text_config"]["vocab_size"] += 1
    listed_file("config.json", json.dumps(config))(package)


def garbage_graph(package: Path) -> None:
    (package / DECODER).write_bytes(b"\xff" * 100)
    refresh(package, DECODER)


def say(**values: object) -> Callable[[Path], None]:
    return lambda package: change_manifest(package, lambda document: document.update(values))


def other_contract(document: dict) -> None:
    document["components"]["decoder"]["graphs"][DECODER]["inputs"][0]["name"] = "x"


FOLDER_DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "missing data": ("missing", lambda package: (package / "decoder" / "model.onnx.data").unlink()),
    "missing asset": ("missing", lambda package: (package / "tokenizer.json").unlink()),
    "short data": ("data-size", cut),
    "long data": ("data-size", grow),
    "one flipped bit": ("hash", flip),
    "data of an earlier dtype": ("unlisted", add_file("decoder/model.fp32.onnx.data")),
    "foreign file": ("unlisted", add_file("notes.txt")),
    "empty folder": ("unlisted", lambda package: (package / "vision").mkdir()),
    "code": ("code", add_file("modeling.py")),
    "listed code": ("code", listed_file("modeling.py", "")),
    "listed pickle": ("kind", listed_file("weights.bin", "")),
    "link": ("link", link),
    "path in a file of ours": ("path", listed_file("genai_config.json", json.dumps({"x": ["/" + "opt/models/q"]}))),
    "path in the manifest": ("path", say(versions={"torch": "/" + "root/wheels/torch.whl"})),
    "unreadable graph": ("unreadable", garbage_graph),
    "config of another model": ("contract", other_config),
    "damaged config": ("config", listed_file("config.json", "{")),
    "contract in the manifest": ("contract", lambda package: change_manifest(package, other_contract)),
    "data without weights": ("manifest", say(weights="absent")),
    "unlisted data": (
        "manifest",
        lambda package: change_manifest(package, lambda d: d["files"].pop("decoder/model.onnx.data")),
    ),
}


@pytest.mark.parametrize("name", FOLDER_DAMAGE)
def test_damage_to_the_folder_is_found(copy_of: Callable[[str], Path], name: str) -> None:
    rule, change = FOLDER_DAMAGE[name]
    package = copy_of("vlm")
    change(package)
    report = audit(package, deep=True, graph_only=True)
    assert rule in rules(report), report.findings


def test_contents_are_compared_when_asked_for(copy_of: Callable[[str], Path]) -> None:
    package = copy_of("vlm")
    flip(package)
    assert audit(package).ok
    assert [finding.graph for finding in audit(package, deep=True).findings] == ["decoder/model.onnx.data"]


MANIFEST_DAMAGE: dict[str, Callable[[dict], object]] = {
    "way out": lambda d: d["files"].__setitem__("../x", d["files"]["config.json"]),
    "absolute": lambda d: d["files"].__setitem__("/x", d["files"]["config.json"]),
    "drive": lambda d: d["files"].__setitem__("C:x", d["files"]["config.json"]),
    "size": lambda d: d["files"]["config.json"].__setitem__("size", -1),
    "hash": lambda d: d["files"]["config.json"].__setitem__("sha256", "0"),
    "recipe": lambda d: d["recipe"].__setitem__("dtype", "int4"),
    "unknown recipe key": lambda d: d["recipe"].__setitem__("speed", 1),
    "binding": lambda d: d["components"]["decoder"]["bindings"]["norm"].__setitem__("transform", "sin"),
    "group": lambda d: d["components"]["decoder"]["bindings"]["q_proj"]["parts"][0].__setitem__("group", [0, 0, 0]),
    "no components": lambda d: d["components"].clear(),
    "no files": lambda d: d.pop("files"),
    "list for a table": lambda d: d.__setitem__("components", []),
    "weights": lambda d: d.__setitem__("weights", "maybe"),
    "unknown component": lambda d: d["components"].__setitem__("tower", d["components"]["decoder"]),
    "data elsewhere": lambda d: d["components"]["decoder"].__setitem__("data", "../x"),
    "later format": lambda d: d.__setitem__("format_version", 2),
    "other format": lambda d: d.__setitem__("format", "x"),
}


@pytest.mark.parametrize("name", MANIFEST_DAMAGE)
def test_a_damaged_manifest_is_one_sentence(copy_of: Callable[[str], Path], name: str) -> None:
    package = copy_of("graphs")
    change_manifest(package, MANIFEST_DAMAGE[name])
    with pytest.raises(PackageError, match=r"manifest\.json"):
        audit(package, graph_only=True)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"[" * 100_000])
def test_an_unreadable_manifest_is_one_sentence(copy_of: Callable[[str], Path], content: bytes) -> None:
    package = copy_of("graphs")
    (package / MANIFEST).write_bytes(content)
    with pytest.raises(PackageError, match=r"manifest\.json"):
        audit(package, graph_only=True)


def test_a_path_that_came_with_the_checkpoint_is_a_note(copy_of: Callable[[str], Path]) -> None:
    package = copy_of("vlm")
    config = json.loads((package / "config.json").read_text(encoding="utf-8"))
    config["_name_or_path"] = "/" + "data/models/mine"
    listed_file("config.json", json.dumps(config))(package)
    report = audit(package)
    assert report.ok
    assert any("_name" in note or "data/models/mine" in note for note in report.notes)


@pytest.mark.parametrize(
    ("text", "leaks"),
    [
        ("/" + "home/me/x.py", True),
        ("see /" + "tmp/build/y", True),
        ("/anything/at/all", True),
        (r"D:\models", True),
        ("file:///x", True),
        ("~/models", True),
        ("model.layers.0/MatMul", False),
        ("https://example.org/a/b", False),
        ("</think>", False),
        ("a/b", False),
        ("past_sequence_length + sequence_length", False),
        ("10/12", False),
        ("/", False),
    ],
)
def test_what_counts_as_a_path(text: str, leaks: bool) -> None:
    assert (leaked_path(text) is not None) == leaks


def test_weights_are_never_read(copy_of: Callable[[str], Path]) -> None:
    """A sparse file of 40 GB takes no time and no memory unless somebody reads it."""
    package = copy_of("vlm")
    data = package / "decoder" / "model.onnx.data"
    with open(data, "r+b") as file:
        file.truncate(40 << 30)
    start = time.perf_counter()
    report = audit(package)
    assert time.perf_counter() - start < 5
    assert rules(report) == {"size", "data-size"}


def test_a_package_may_be_moved(finished: dict[str, Path], tmp_path: Path) -> None:
    moved = Path(shutil.copytree(finished["vlm"], tmp_path / "a b" / "ü" / "pkg"))
    assert audit(moved, deep=True).ok
