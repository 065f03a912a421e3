"""Opening, inspecting, comparing and extending packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from qwen_export.contract import COMPONENTS, DECODER, TEXT
from qwen_export.errors import CheckpointError, PackageError, UsageError
from qwen_export.package import Difference, Severity, add_metadata_files, audit, diff, inspect, open_package


def test_an_opened_package_hands_out_paths_and_facts(finished: dict[str, Path]) -> None:
    package = open_package(finished["vlm"])
    assert package.components == COMPONENTS
    assert package.recipe.dtype == "fp16"
    assert package.config.text.num_hidden_layers == 8
    assert package.graph_path(DECODER) == finished["vlm"] / "decoder" / "model.onnx"
    assert package.data_path(DECODER).stat().st_size == package.record(DECODER).data_bytes
    assert package.contract(DECODER).inputs[0].name == "inputs_embeds"
    assert package.decode_graph is None
    package.require_weights("run")
    with pytest.raises(PackageError, match="has no component text"):
        package.graph_path(TEXT)
    assert open_package(finished["text"]).graph_path(TEXT) == finished["text"] / "model.onnx"
    decode = open_package(finished["decode"])
    assert decode.contract(DECODER, single_step=True).inputs[0].shape[:2] == ("batch", 1)


def test_a_graph_only_package_is_refused_where_weights_are_needed(finished: dict[str, Path]) -> None:
    with pytest.raises(PackageError, match=r"graph-only package, so it cannot be used to run\. .*qwen-export bind"):
        open_package(finished["graphs"]).require_weights("run")


def test_what_is_no_package_is_refused_in_one_sentence(
    tiny_checkpoint: Path, tmp_path: Path, copy_of: Callable[[str], Path]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for path, reason in (
        (tmp_path / "nothing", "There is no package"),
        (tmp_path / "file", "is a file"),
        (tiny_checkpoint, r"is not a package: it has no manifest\.json"),
    ):
        with pytest.raises(PackageError, match=reason):
            open_package(path)
    package = copy_of("vlm")
    (package / "decoder" / "model.onnx.data").write_bytes(b"short")
    with pytest.raises(PackageError, match=r"decoder/model\.onnx\.data has 5 bytes instead of"):
        open_package(package)
    (package / "decoder" / "model.onnx.data").unlink()
    with pytest.raises(PackageError, match=r"decoder/model\.onnx\.data is missing"):
        open_package(package)


def test_inspect_a_package(finished: dict[str, Path]) -> None:
    found = inspect(finished["vlm"])
    assert found.kind == "package"
    assert [piece.component for piece in found.pieces] == list(COMPONENTS)
    decoder = found.pieces[2]
    assert (decoder.num_tensors, decoder.num_nodes, decoder.dtypes) == (4, 17, {"float16": 2, "float32": 2})
    assert found.operators["decoder/model.onnx"] == {"Identity": 17}
    assert found.contract["embedding/model.onnx"]["outputs"][0]["name"] == "inputs_embeds"
    assert found.facts["dtype"] == "fp16"
    assert found.facts["total bytes"] == sum(found.files.values())
    assert json.loads(json.dumps(found.to_dict()))["kind"] == "package"


def test_inspect_a_checkpoint(tiny_checkpoint: Path) -> None:
    from qwen_export.checkpoint.synth import plan

    found = inspect(tiny_checkpoint)
    planned = plan(json.loads((tiny_checkpoint / "config.json").read_text(encoding="utf-8")))
    assert found.kind == "checkpoint"
    assert found.facts["tensors"] + found.facts["skipped tensors"] == planned.num_tensors
    assert found.facts["tensors"] == sum(piece.num_tensors for piece in found.pieces)
    assert found.facts["tensor bytes"] == sum(piece.num_bytes for piece in found.pieces)
    assert found.pieces[0].num_tensors == planned.num_visual_tensors
    assert all(key.startswith("mtp.") for key in found.skipped_tensors)
    assert found.contract[DECODER]["inputs"][0]["name"] == "inputs_embeds"
    json.dumps(found.to_dict())


def test_inspect_neither(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"neither a package .* nor a checkpoint"):
        inspect(tmp_path)
    with pytest.raises(CheckpointError):
        inspect(tmp_path / "nothing")


def test_a_package_does_not_differ_from_its_copy(finished: dict[str, Path], copy_of: Callable[[str], Path]) -> None:
    report = diff(finished["vlm"], copy_of("vlm"), deep=True)
    assert report.same
    assert report.to_dict()["same"]


def test_diff_names_settings_files_and_nodes(finished: dict[str, Path]) -> None:
    report = diff(finished["vlm"], finished["decode"])
    assert not report.same
    found = {(difference.kind, difference.place) for difference in report.differences}
    assert ("recipe", "kv_cache") in found
    assert ("graph", "decoder/decode.onnx") in found
    assert ("interface", "decoder/model.onnx, inputs") in found
    assert not any(place.startswith(("embedding", "vision")) for _, place in found)
    assert report.severity is Severity.interface


def found_nodes(first: Path, second: Path) -> list[Difference]:
    return [entry for entry in diff(first, second).differences if entry.kind == "node"]


def test_diff_names_the_weight_and_the_node(finished: dict[str, Path], copy_of: Callable[[str], Path]) -> None:
    package = copy_of("vlm")
    slot_byte = 100
    data = package / "embedding" / "model.onnx.data"
    content = bytearray(data.read_bytes())
    content[slot_byte] ^= 1
    data.write_bytes(content)
    assert diff(finished["vlm"], package).same
    model = onnx.ModelProto.FromString((package / "decoder" / "model.onnx").read_bytes())
    model.graph.node[3].op_type = "Sigmoid"
    (package / "decoder" / "model.onnx").write_bytes(model.SerializeToString())
    manifest = json.loads((package / "manifest.json").read_text(encoding="utf-8"))
    manifest["files"]["decoder/model.onnx"]["size"] = (package / "decoder" / "model.onnx").stat().st_size
    (package / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    found = {difference.place: difference for difference in diff(finished["vlm"], package, deep=True).differences}
    assert found["embedding/model.onnx, embed_tokens.weight"].detail == "contents differ"
    nodes = {entry.detail for entry in found_nodes(finished["vlm"], package)}
    assert nodes == {"1 Identity removed", "1 Sigmoid added"}


def test_metadata_files_are_added_and_replaced(copy_of: Callable[[str], Path]) -> None:
    package = copy_of("vlm")
    before = {path: record.sha256 for path, record in open_package(package).manifest.files.items()}
    add_metadata_files(package, {"genai_config.json": b'{"a": 1}\n', "genai_processor.json": b"{}"})
    add_metadata_files(package, {"genai_config.json": b'{"a": 2}\n'})
    assert (package / "genai_config.json").read_bytes() == b'{"a": 2}\n'
    after = {path: record.sha256 for path, record in open_package(package).manifest.files.items()}
    assert set(after) - set(before) == {"genai_config.json", "genai_processor.json"}
    assert {path: after[path] for path in before} == before
    assert audit(package, deep=True).ok
    assert all(os.stat(package / path).st_nlink == 1 for path in after)
    with pytest.raises(UsageError, match="cannot be added"):
        add_metadata_files(package, {"run.py": b""})


WITHOUT_TORCH = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers", "onnxscript", "onnxruntime"}:
            raise ModuleNotFoundError(f"No module named {name!r} (hidden)", name=name)
sys.meta_path.insert(0, Hidden())
import qwen_export
graphs, checkpoint, output = sys.argv[1:]
qwen_export.inspect(checkpoint)
qwen_export.bind(graphs, checkpoint, output)
assert qwen_export.audit(output, deep=True).ok
assert not qwen_export.diff(graphs, output).same
qwen_export.inspect(output)
qwen_export.open_package(output)
"""


def test_these_verbs_need_no_torch(finished: dict[str, Path], tiny_checkpoint: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(finished["graphs"]), str(tiny_checkpoint), str(tmp_path / "p")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
