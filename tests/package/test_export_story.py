"""Exporting, binding and re-exporting: what is written, what stays, and what is left after a fault."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

import qwen_export.export as story
from qwen_export.contract import COMPONENTS, DECODER, EMBEDDING, VISION_ENCODER
from qwen_export.errors import CheckpointError, InternalError, UsageError
from qwen_export.export import export_component, export_text, export_vlm
from qwen_export.package import audit, bind, open_package, write
from qwen_export.package.manifest import MANIFEST
from qwen_export.recipe import Recipe
from qwen_export.weights import evaluate, plan_layout
from tests.package import hand_made

pytestmark = pytest.mark.usefixtures("hand_made_graphs")


def contents(package: Path) -> dict[str, str]:
    """File -> SHA-256 of everything in a folder, hidden files included."""
    return {
        file.relative_to(package).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(package.rglob("*"))
        if file.is_file()
    }


def only(folder: Path, *names: str) -> None:
    """Nothing but these is left in a folder: no staging folder, no lock."""
    assert sorted(entry.name for entry in folder.iterdir()) == sorted(names)


def test_a_package_holds_what_the_contract_lists(tiny_checkpoint: Path, tmp_path: Path) -> None:
    result = export_vlm(tiny_checkpoint, tmp_path / "new" / "pkg")
    package = tmp_path / "new" / "pkg"
    assert result.package == package
    assert result.report.ok
    only(package.parent, "pkg")
    files = contents(package)
    graphs = {f"{name}/{file}" for name in COMPONENTS for file in ("model.onnx", "model.onnx.data")}
    assert set(files) > {MANIFEST, "config.json", "tokenizer.json", "chat_template.jinja", *graphs}
    manifest = json.loads((package / MANIFEST).read_text(encoding="utf-8"))
    assert manifest["weights"] == "present"
    assert {path: record["sha256"] for path, record in manifest["files"].items()} == {
        path: sha for path, sha in files.items() if path != MANIFEST
    }
    assert manifest["recipe"] == Recipe().to_dict()
    assert manifest["versions"]["torch"]
    for name in ("config.json", "tokenizer.json"):
        assert (package / name).read_bytes() == (tiny_checkpoint / name).read_bytes()


def test_the_stored_bytes_are_the_bindings_of_the_checkpoint(tiny_checkpoint: Path, finished: dict[str, Path]) -> None:
    from qwen_export.checkpoint import open_snapshot

    snapshot, package = open_snapshot(tiny_checkpoint), open_package(finished["vlm"])
    for component in COMPONENTS:
        data = package.data_path(component).read_bytes()
        bindings = package.record(component).bindings
        for name, slot in plan_layout(bindings).slots.items():
            assert data[slot.offset : slot.end] == evaluate(bindings[name], snapshot.array).tobytes(), name
    used = {key for c in COMPONENTS for b in package.record(c).bindings.values() for key in b.tensors}
    recorded = package.manifest.checkpoint.tensors
    assert set(recorded) == used
    for key, record in recorded.items():
        assert record.sha256 == hashlib.sha256(snapshot.array(key).tobytes()).hexdigest()


def test_two_exports_from_two_folders_are_equal(tiny_checkpoint: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(tiny_checkpoint, tmp_path / "elsewhere" / "copy"))
    export_vlm(tiny_checkpoint, tmp_path / "a")
    export_vlm(moved, tmp_path / "deep" / "down" / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "deep" / "down" / "b")


@pytest.mark.parametrize("kind", ["vlm", "text"])
def test_bind_gives_what_an_export_gives(tiny_checkpoint: Path, tmp_path: Path, kind: str) -> None:
    export = {"vlm": export_vlm, "text": export_text}[kind]
    export(tiny_checkpoint, tmp_path / "whole")
    export(tiny_checkpoint, tmp_path / "graphs", graph_only=True)
    assert not list((tmp_path / "graphs").rglob("*.data"))
    bind(tmp_path / "graphs", tiny_checkpoint, tmp_path / "bound")
    assert contents(tmp_path / "bound") == contents(tmp_path / "whole")
    bind(tmp_path / "graphs", tiny_checkpoint, tmp_path / "graphs", overwrite=True)
    assert contents(tmp_path / "graphs") == contents(tmp_path / "whole")


def test_graphs_of_a_bare_config_can_be_bound(tiny_checkpoint: Path, tmp_path: Path) -> None:
    config = tmp_path / "somewhere" / "tiny.json"
    config.parent.mkdir()
    shutil.copy(tiny_checkpoint / "config.json", config)
    result = export_vlm(config, tmp_path / "graphs", graph_only=True)
    assert result.report.graph_only
    assert "missing asset: tokenizer.json" in result.report.notes
    export_vlm(tiny_checkpoint, tmp_path / "whole")
    bind(tmp_path / "graphs", tiny_checkpoint, tmp_path / "bound")
    assert contents(tmp_path / "bound") == contents(tmp_path / "whole")
    named = export_vlm("tiny", tmp_path / "named", graph_only=True)
    assert named.report.ok


def test_bind_refuses_a_checkpoint_of_another_shape(tiny_checkpoint: Path, tmp_path: Path) -> None:
    config = json.loads((tiny_checkpoint / "config.json").read_text(encoding="utf-8"))
    config["text_config"]["intermediate_size"] += 32
    (tmp_path / "other.json").write_text(json.dumps(config), encoding="utf-8")
    export_vlm(tmp_path / "other.json", tmp_path / "graphs", graph_only=True)
    with pytest.raises(CheckpointError, match=r"does not fit .*text_config\.intermediate_size"):
        bind(tmp_path / "graphs", tiny_checkpoint, tmp_path / "bound")
    only(tmp_path, "graphs", "other.json")


def test_bind_accepts_a_config_that_says_the_same_in_other_words(tiny_checkpoint: Path, tmp_path: Path) -> None:
    config = json.loads((tiny_checkpoint / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "same.json").write_text(json.dumps(config, indent=7), encoding="utf-8")
    export_vlm(tmp_path / "same.json", tmp_path / "graphs", graph_only=True)
    bind(tmp_path / "graphs", tiny_checkpoint, tmp_path / "bound")
    assert (tmp_path / "bound" / "config.json").read_bytes() == (tiny_checkpoint / "config.json").read_bytes()


def test_one_component_is_replaced_and_the_others_stay(tiny_checkpoint: Path, tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    export_vlm(tiny_checkpoint, package)
    before = contents(package)
    export_component(DECODER, tiny_checkpoint, package)
    assert contents(package) == before
    recipe = open_package(package).recipe.with_overrides({"logits": "all"})
    result = export_component(DECODER, tiny_checkpoint, package, recipe=recipe)
    assert result.report.ok
    after = contents(package)
    assert {path for path in before if before[path] != after.get(path)} == {MANIFEST, "decoder/model.onnx"}
    assert open_package(package).recipe.logits == "all"
    assert audit(package, deep=True).ok
    assert all(os.stat(package / path).st_nlink == 1 for path in after)
    only(tmp_path, "pkg")


def test_a_component_that_was_left_out_can_be_added(tiny_checkpoint: Path, tmp_path: Path) -> None:
    export_vlm(tiny_checkpoint, tmp_path / "whole")
    export_vlm(tiny_checkpoint, tmp_path / "pkg", components=[DECODER, EMBEDDING])
    assert open_package(tmp_path / "pkg").components == (EMBEDDING, DECODER)
    export_component(VISION_ENCODER, tiny_checkpoint, tmp_path / "pkg")
    assert contents(tmp_path / "pkg") == contents(tmp_path / "whole")


def test_another_dtype_leaves_no_file_of_the_first(tiny_checkpoint: Path, tmp_path: Path) -> None:
    export_vlm(tiny_checkpoint, tmp_path / "pkg", recipe=Recipe(dtype="fp32"))
    export_vlm(tiny_checkpoint, tmp_path / "pkg", recipe=Recipe(dtype="bf16"), overwrite=True)
    export_vlm(tiny_checkpoint, tmp_path / "fresh", recipe=Recipe(dtype="bf16"))
    assert contents(tmp_path / "pkg") == contents(tmp_path / "fresh")
    only(tmp_path, "fresh", "pkg")


def test_a_component_of_another_dtype_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    export_vlm(tiny_checkpoint, tmp_path / "pkg", recipe=Recipe(dtype="fp16"))
    before = contents(tmp_path / "pkg")
    with pytest.raises(UsageError, match=r"decoder would be fp32, but the package's vision_encoder is fp16"):
        export_component(DECODER, tiny_checkpoint, tmp_path / "pkg", recipe=Recipe(dtype="fp32"))
    assert contents(tmp_path / "pkg") == before


def test_a_component_of_another_checkpoint_is_refused_where_it_can_be_told(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qwen_export.checkpoint import load_config
    from qwen_export.checkpoint.synth import synthesise

    synthesise(tmp_path / "other", load_config("tiny"), seed=7)
    monkeypatch.setattr(
        hand_made,
        "bindings_of",
        lambda component, config, dtype, real=hand_made.bindings_of: (
            real("embedding", config, dtype) if component == "decoder" else real(component, config, dtype)
        ),
    )
    export_vlm(tiny_checkpoint, tmp_path / "pkg")
    before = contents(tmp_path / "pkg")
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight of this checkpoint has other values"):
        export_component(DECODER, tmp_path / "other", tmp_path / "pkg")
    assert contents(tmp_path / "pkg") == before


def test_a_text_package_takes_no_component(tiny_checkpoint: Path, tmp_path: Path) -> None:
    export_text(tiny_checkpoint, tmp_path / "pkg")
    assert {"model.onnx", "model.onnx.data"} < set(contents(tmp_path / "pkg"))
    with pytest.raises(UsageError, match="exported as a whole"):
        export_component(DECODER, tiny_checkpoint, tmp_path / "pkg")


def test_a_decode_graph_shares_the_data_file(finished: dict[str, Path]) -> None:
    package = open_package(finished["decode"])
    assert package.decode_graph == package.folder / "decoder" / "decode.onnx"
    assert audit(finished["decode"], deep=True).ok
    assert sorted(file.name for file in (package.folder / "decoder").iterdir()) == [
        "decode.onnx",
        "model.onnx",
        "model.onnx.data",
    ]


def test_an_export_that_fails_its_audit_leaves_nothing(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_foreign_operator(*args, **options):
        built = hand_made.build_graph(*args, **options)
        next(iter(built.model.graph)).domain = "com.microsoft"
        return built

    monkeypatch.setattr(story, "build_graph", with_foreign_operator)
    with pytest.raises(InternalError, match=r"\[domain\].*com\.microsoft"):
        export_vlm(tiny_checkpoint, tmp_path / "pkg")
    only(tmp_path)


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("fault", [KeyboardInterrupt, MemoryError, RuntimeError])
def test_a_fault_on_the_way_leaves_the_earlier_package(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: type[BaseException], earlier: bool
) -> None:
    package = tmp_path / "pkg"
    if earlier:
        export_vlm(tiny_checkpoint, package)
    before = contents(package) if earlier else {}

    def failing(*_args: object, **_options: object) -> None:
        raise fault

    monkeypatch.setattr(write, "stream", failing)
    with pytest.raises(fault):
        export_vlm(tiny_checkpoint, package, overwrite=True, recipe=Recipe(dtype="fp32"))
    only(tmp_path, *(["pkg"] if earlier else []))
    assert contents(package) == before


def test_space_is_checked_before_tracing(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=100_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    monkeypatch.setattr(story, "build_graph", None)
    with pytest.raises(UsageError, match=r"pkg cannot be written: it needs [\d,]{7,} bytes and 100,000 are free"):
        export_vlm(tiny_checkpoint, tmp_path / "pkg")
    only(tmp_path)


def test_a_text_only_config_has_no_vision_language_package(tiny_checkpoint: Path, tmp_path: Path) -> None:
    config = json.loads((tiny_checkpoint / "config.json").read_text(encoding="utf-8"))["text_config"]
    config["model_type"] = "qwen3_5_text"
    (tmp_path / "text.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(CheckpointError, match="qwen-export text"):
        export_vlm(tmp_path / "text.json", tmp_path / "pkg", graph_only=True)
    assert export_text(tmp_path / "text.json", tmp_path / "pkg", graph_only=True).report.ok


def test_unknown_components_are_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no component 'tower'"):
        export_vlm(tiny_checkpoint, tmp_path / "pkg", components=["tower"], graph_only=True)
    with pytest.raises(UsageError, match="package of its own"):
        export_vlm(tiny_checkpoint, tmp_path / "pkg", components=["text"])


def test_an_asset_that_links_out_of_the_checkpoint_is_not_copied(tiny_checkpoint: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint"))
    (tmp_path / "secret").write_text("{}", encoding="utf-8")
    (copy / "added_tokens.json").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match=r"added_tokens\.json is a link to a file outside"):
        export_vlm(copy, tmp_path / "pkg")
    only(tmp_path, "checkpoint", "secret")


def test_code_beside_the_weights_is_not_copied(tiny_checkpoint: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint"))
    (copy / "modeling_qwen.py").write_text("raise SystemExit", encoding="utf-8")
    (copy / "notes.json").write_text("{}", encoding="utf-8")
    export_vlm(copy, tmp_path / "pkg")
    export_vlm(tiny_checkpoint, tmp_path / "plain")
    assert contents(tmp_path / "pkg") == contents(tmp_path / "plain")


def test_weights_with_nan_are_refused_by_name_or_kept_when_asked(tiny_checkpoint: Path, tmp_path: Path) -> None:
    from qwen_export.checkpoint import open_snapshot

    copy = Path(shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint"))
    info = open_snapshot(copy).tensors["lm_head.weight"]
    with open(info.file, "r+b") as file:
        file.seek(info.start + 10)
        file.write(b"\xc0\x7f")
    with pytest.raises(CheckpointError, match=r"^lm_head\.weight in .*\.safetensors holds NaN"):
        export_vlm(copy, tmp_path / "pkg")
    only(tmp_path, "checkpoint")
    result = export_vlm(copy, tmp_path / "pkg", allow_not_finite=True)
    assert result.report.ok
    assert any("lm_head.weight" in note and "NaN" in note for note in result.report.notes)
