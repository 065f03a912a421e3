"""Deliberate changes of the code, through the real export, each reported as what it is and at its severity."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from safetensors.numpy import load_file, save_file

import qwen_export.export as story
from qwen_export import Recipe, baseline, diff, export_vlm
from qwen_export.checkpoint.synth import synthesise
from qwen_export.package import DiffReport, Severity, diff_markdown
from qwen_export.passes import pipeline
from qwen_export.tracing import build
from qwen_export.wrappers import decoder as wrappers

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "ci" / "dense-tied.json"
RECIPE = Recipe(dtype="fp32")


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The baseline of a decoder as the code makes it."""
    return exported(tmp_path_factory.mktemp("accepted"))


def exported(folder: Path, recipe: Recipe = RECIPE, config: Path = CONFIG) -> Path:
    """Export a decoder, graph only, and write its baseline."""
    story.export_vlm(str(config), folder / "pkg", recipe=recipe, components=["decoder"], graph_only=True)
    baseline(folder / "pkg", folder / "baseline.json")
    return folder / "baseline.json"


def judged(accepted: Path, folder: Path, recipe: Recipe = RECIPE) -> DiffReport:
    return diff(accepted, exported(folder, recipe))


def details(report: DiffReport, severity: Severity) -> list[str]:
    return [str(entry) for entry in report.differences if entry.severity is severity]


def edit_layers(monkeypatch: pytest.MonkeyPatch, edit: Callable[[ir.Graph], None]) -> None:
    """Run one more pass after all others over every traced piece."""
    original = pipeline.lower

    def lower(model: ir.Model, recipe: Recipe, *, single_step: bool = False) -> None:
        original(model, recipe, single_step=single_step)
        edit(model.graph)

    monkeypatch.setattr(build, "lower", lower)


def first(graph: ir.Graph, operator: str) -> ir.Node | None:
    return next((node for node in graph if node.op_type == operator), None)


def put_after(graph: ir.Graph, node: ir.Node, operator: str, **attributes: object) -> None:
    """Send a node's only output through one more node."""
    extra = ir.node(operator, [node.outputs[0]], attributes or None, name=f"extra_{operator}")
    extra.outputs[0].name = f"extra_{operator}"
    node.outputs[0].replace_all_uses_with(extra.outputs[0])
    extra.replace_input_with(0, node.outputs[0])
    graph.insert_after(node, extra)


def test_nothing_and_two_folders(accepted: Path, tmp_path: Path) -> None:
    again = exported(tmp_path / "another" / "folder")
    report = diff(accepted, again)
    assert (report.same, report.differences, report.severity) == (True, (), Severity.nothing)
    assert again.read_bytes() == accepted.read_bytes()
    graphs = [folder / "pkg" / "decoder" / "model.onnx" for folder in (accepted.parent, again.parent)]
    assert graphs[0].read_bytes() == graphs[1].read_bytes()
    assert "no change" in diff_markdown(report, "decoder")


def test_epsilon_is_wiring(accepted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(self: wrappers.DecoderHead, *args: object, **options: object) -> None:
        original(self, *args, **options)
        self.eps *= 10

    original = wrappers.DecoderHead.__init__
    monkeypatch.setattr(wrappers.DecoderHead, "__init__", other)
    report = judged(accepted, tmp_path)
    assert report.severity is Severity.wiring
    assert details(report, Severity.wiring) == [
        "node decoder/model.onnx, model.language_model.norm: 1 RMSNormalization: another attribute or constant"
    ]


def test_a_cast_is_an_operator(accepted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(graph: ir.Graph) -> None:
        if (node := first(graph, "Sigmoid")) is not None:
            put_after(graph, node, "Cast", to=1)

    edit_layers(monkeypatch, edit)
    report = judged(accepted, tmp_path)
    assert report.severity is Severity.operators
    assert details(report, Severity.operators)[0].endswith("1 Cast added")
    assert [metric.metric for metric in report.histogram] == ["Cast"]


def test_another_layout_of_a_weight(accepted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head's weight stays as the checkpoint has it, [out, in], and is turned in the graph."""

    def edit(graph: ir.Graph) -> None:
        weight = next((value for value in graph.initializers.values() if value.name == "lm_head"), None)
        if weight is None:
            return
        turned = ir.node("Transpose", [weight], {"perm": [1, 0]}, name="turn")
        turned.outputs[0].name = "turn"
        readers = [(use.node, use.idx) for use in weight.uses() if use.node is not turned]
        for node, index in readers:
            node.replace_input_with(index, turned.outputs[0])
        graph.insert_before(readers[0][0], turned)

    edit_layers(monkeypatch, edit)
    original = build.Request.piece

    def piece(self: build.Request, *args: object, **options: object) -> object:
        traced = original(self, *args, **options)
        for name, binding in traced.bindings.items():
            if name == "lm_head" and binding.transpose:
                traced.bindings[name] = replace(binding, transpose=False, shape=binding.shape[::-1])
        return traced

    monkeypatch.setattr(build.Request, "piece", piece)
    report = judged(accepted, tmp_path)
    assert report.severity is Severity.operators
    found = details(report, Severity.operators)
    assert any("1 Transpose added" in text for text in found)
    assert any(text.startswith("weight ") and " became " in text for text in found)


def test_a_dropped_mask(accepted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(graph: ir.Graph) -> None:
        for node in ir.traversal.RecursiveGraphIterator(graph):
            if node.op_type == "Attention" and len(node.inputs) > 3 and node.inputs[3] is not None:
                node.replace_input_with(3, None)

    edit_layers(monkeypatch, edit)
    report = judged(accepted, tmp_path)
    assert report.severity is Severity.operators
    assert any("layers.3" in text and "Attention" in text for text in details(report, Severity.wiring))
    assert any(text.endswith("removed") for text in details(report, Severity.operators))


def test_a_renamed_output(accepted: Path, tmp_path: Path) -> None:
    report = diff(accepted, edited(accepted, tmp_path, rename_logits))
    assert report.severity is Severity.interface
    assert details(report, Severity.interface) == ["interface decoder/model.onnx, outputs: logits is renamed to scores"]
    assert not details(report, Severity.operators)
    assert not details(report, Severity.wiring)


def rename_logits(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.output[:] = ["scores" if name == "logits" else name for name in node.output]
    model.graph.output[0].name = "scores"


def edited(accepted: Path, folder: Path, edit: Callable[[onnx.ModelProto], None]) -> Path:
    """The accepted package with an edited graph."""
    file = accepted.parent / "pkg" / "decoder" / "model.onnx"
    model = onnx.ModelProto.FromString(file.read_bytes())
    edit(model)
    package = folder / "pkg"
    for source in (accepted.parent / "pkg").rglob("*"):
        if source.is_file():
            target = package / source.relative_to(accepted.parent / "pkg")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    graph = package / "decoder" / "model.onnx"
    graph.write_bytes(model.SerializeToString(deterministic=True))
    manifest = json.loads((package / "manifest.json").read_text(encoding="utf-8"))
    manifest["files"]["decoder/model.onnx"]["size"] = graph.stat().st_size
    (package / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return package


def test_an_extra_node(accepted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(graph: ir.Graph) -> None:
        if (node := first(graph, "Sigmoid")) is not None:
            put_after(graph, node, "Identity")

    edit_layers(monkeypatch, edit)
    report = judged(accepted, tmp_path)
    assert report.severity is Severity.operators
    assert any(text.endswith("1 Identity added") for text in details(report, Severity.operators))
    assert [entry.mark for entry in report.metrics if entry.metric == "nodes"] == ["over"]


def test_the_opset(accepted: Path, tmp_path: Path) -> None:
    def edit(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = 25

    report = diff(accepted, edited(accepted, tmp_path, edit))
    assert [str(entry) for entry in report.differences] == ["opset decoder/model.onnx: opset 24 became 25"]
    assert report.severity is Severity.interface


def test_the_chunk_size(accepted: Path, tmp_path: Path) -> None:
    report = judged(accepted, tmp_path, Recipe(dtype="fp32", chunk_size=32))
    assert report.severity is Severity.operators
    assert "recipe chunk_size: 64 became 32" in details(report, Severity.nothing)
    assert all("gated_delta_net" in text for text in details(report, Severity.operators))


def test_other_weights(tmp_path: Path) -> None:
    config = json.loads(CONFIG.read_text(encoding="utf-8"))
    synthesise(tmp_path / "one", config)
    synthesise(tmp_path / "two", config)
    key = "model.language_model.norm.weight"
    for shard in (tmp_path / "two").glob("*.safetensors"):
        tensors = load_file(shard)
        if key in tensors:
            tensors[key] = (tensors[key].astype(np.float32) + 1).astype(tensors[key].dtype)
            save_file(tensors, shard, metadata={"format": "pt"})
    for name in ("one", "two"):
        export_vlm(tmp_path / name, tmp_path / f"pkg-{name}", recipe=RECIPE, components=["decoder"])
        baseline(tmp_path / f"pkg-{name}", tmp_path / f"{name}.json")
    for ending in ("pkg-one", "one.json"):
        report = diff(tmp_path / ending, tmp_path / "two.json")
        assert report.severity is Severity.wiring
        assert [entry.detail for entry in report.differences] == ["contents differ"]
        assert report.differences[0].place.startswith("decoder/model.onnx, head.")
