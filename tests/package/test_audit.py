"""Audit: a whole package passes, and every kind of damage is found, with graph, node and rule."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from qwen_export.errors import PackageError
from qwen_export.package import AuditReport, audit
from qwen_export.package.audit.paths import leaked_path
from qwen_export.package.manifest import MANIFEST

DECODER = "decoder/model.onnx"


def change_graph(package: Path, change: Callable[[onnx.ModelProto], object], file: str = DECODER) -> None:
    """Edit a graph and make the manifest fit, so that only the edit itself is wrong."""
    model = onnx.ModelProto.FromString((package / file).read_bytes())
    change(model)
    (package / file).write_bytes(model.SerializeToString())
    refresh(package, file)


def change_manifest(package: Path, change: Callable[[dict], object]) -> None:
    document = json.loads((package / MANIFEST).read_text(encoding="utf-8"))
    change(document)
    (package / MANIFEST).write_text(json.dumps(document), encoding="utf-8")


def refresh(package: Path, file: str) -> None:
    """Record a file's new size and hash."""
    content = (package / file).read_bytes()
    record = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    change_manifest(package, lambda document: document["files"].__setitem__(file, record))


def rules(report: AuditReport) -> set[str]:
    return {finding.rule for finding in report.findings}


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


def first(model: onnx.ModelProto) -> onnx.NodeProto:
    return model.graph.node[0]


def weight(model: onnx.ModelProto, name: str) -> TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def place(model: onnx.ModelProto, name: str, **facts: str) -> None:
    for entry in weight(model, name).external_data:
        entry.value = facts.get(entry.key, entry.value)


def add(model: onnx.ModelProto, operator: str, inputs: list[str], outputs: list[str], **options: object) -> None:
    model.graph.node.append(helper.make_node(operator, inputs, outputs, name="added", **options))


def inside_if(model: onnx.ModelProto, operator: str, domain: str = "") -> None:
    """An If whose else branch holds another If with the given operator in it."""
    cond = helper.make_tensor("cond", TensorProto.BOOL, [], [True])
    model.graph.initializer.append(cond)
    out = helper.make_tensor_value_info("deep", TensorProto.FLOAT16, None)
    node = helper.make_node(operator, ["inputs_embeds"], ["deep"], name="hidden", domain=domain)
    plain = helper.make_node("Identity", ["inputs_embeds"], ["deep"], name="plain")
    innermost = helper.make_graph([node], "inner", [], [out])
    easy = helper.make_graph([plain], "easy", [], [out])
    nested = helper.make_node("If", ["cond"], ["deep"], name="nested", then_branch=easy, else_branch=innermost)
    middle = helper.make_graph([nested], "middle", [], [out])
    add(model, "If", ["cond"], ["unused_out"], then_branch=easy, else_branch=middle)


def function(model: onnx.ModelProto) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    model.functions.append(helper.make_function("mine", "F", ["x"], ["y"], [node], [helper.make_opsetid("", 24)]))


def inline_weight(model: onnx.ModelProto) -> None:
    tensor = weight(model, "norm")
    del tensor.external_data[:]
    tensor.data_location = TensorProto.DEFAULT
    tensor.raw_data = bytes(4 * tensor.dims[0])


def lose_value(model: onnx.ModelProto) -> None:
    weight(model, "one_two").ClearField("raw_data")


def swap_inputs(model: onnx.ModelProto) -> None:
    values = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in model.graph.input]
    del model.graph.input[:]
    model.graph.input.extend([values[1], values[0], *values[2:]])


def outside_constant(model: onnx.ModelProto) -> None:
    tensor = TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "/etc/hostname"
    add(model, "Constant", [], ["constant_out"], value=tensor)


def metadata(message, key: str, value: str) -> None:
    entry = message.metadata_props.add()
    entry.key, entry.value = key, value


GRAPH_DAMAGE: dict[str, tuple[str, Callable[[onnx.ModelProto], object], str]] = {
    # name: rule, change, node that must be named
    "contrib domain": ("domain", lambda m: setattr(first(m), "domain", "com.microsoft"), "give_logits"),
    "contrib opset import": ("domain", lambda m: m.opset_import.append(helper.make_opsetid("com.microsoft", 1)), ""),
    "runtime-only name in the default domain": (
        "unknown-operator",
        lambda m: add(m, "SimplifiedLayerNormalization", ["inputs_embeds", "norm"], ["sln"]),
        "added",
    ),
    "operator of a later opset": ("unknown-operator", lambda m: add(m, "LinearAttention", ["q"], ["la"]), "added"),
    "deprecated operator": ("deprecated-operator", lambda m: add(m, "Scatter", ["one_two"] * 3, ["sc"]), "added"),
    "unknown attribute": ("attribute", lambda m: add(m, "Relu", ["inputs_embeds"], ["r"], alpha=1.0), "added"),
    "attribute of another type": ("attribute", lambda m: add(m, "Softmax", ["one_two"], ["s"], axis=1.5), "added"),
    "missing attribute": ("attribute", lambda m: add(m, "Cast", ["one_two"], ["c"]), "added"),
    "too many inputs": ("input-count", lambda m: add(m, "Relu", ["one_two", "one_two"], ["r"]), "added"),
    "too few inputs": ("input-count", lambda m: add(m, "MatMul", ["one_two"], ["r"]), "added"),
    "empty required input": ("input-count", lambda m: add(m, "MatMul", ["one_two", ""], ["r"]), "added"),
    "too many outputs": ("output-count", lambda m: add(m, "Relu", ["one_two"], ["r", "q"]), "added"),
    "undefined input": ("checker", lambda m: add(m, "Relu", ["nowhere"], ["r"]), ""),
    "name given twice": ("checker", lambda m: add(m, "Relu", ["one_two"], ["logits"]), ""),
    "operator in a nested branch": ("unknown-operator", lambda m: inside_if(m, "FusedMatMul"), "hidden"),
    "domain in a nested branch": ("domain", lambda m: inside_if(m, "Gelu", "com.microsoft"), "hidden"),
    "local function": ("local-function", function, ""),
    "other opset": ("opset", lambda m: setattr(m.opset_import[0], "version", 23), ""),
    "later IR": ("ir-version", lambda m: setattr(m, "ir_version", 14), ""),
    "unbound initializer": ("unbound", lose_value, "one_two"),
    "weight kept in the graph": ("unbound", inline_weight, "norm"),
    "weight without a place": ("data-range", lambda m: weight(m, "norm").external_data.pop(1), "norm"),
    "offset is no number": ("data-range", lambda m: place(m, "norm", offset="x"), "norm"),
    "negative offset": ("data-range", lambda m: place(m, "norm", offset="-64"), "norm"),
    "beyond the end": ("data-range", lambda m: place(m, "norm", offset="1000000000"), "norm"),
    "overlap": ("overlap", lambda m: place(m, "norm", offset="0"), "norm"),
    "orphan bytes": ("orphan-bytes", lambda m: place(m, "head", length="64"), ""),
    "location outside": ("location", lambda m: place(m, "norm", location="../embedding/model.onnx.data"), "norm"),
    "absolute location": ("location", lambda m: place(m, "norm", location="/etc/passwd"), "norm"),
    "constant outside": ("location", outside_constant, "c"),
    "weight of another shape": ("binding", lambda m: weight(m, "norm").dims.__setitem__(0, 3), "norm"),
    "weight of another dtype": ("binding", lambda m: setattr(weight(m, "norm"), "data_type", 10), "norm"),
    "renamed input": ("contract", lambda m: setattr(m.graph.input[1], "name", "mask"), "mask"),
    "inputs in another order": ("contract", swap_inputs, ""),
    "output of another dtype": (
        "contract", lambda m: setattr(m.graph.output[0].type.tensor_type, "elem_type", 1), "logits",
    ),
    "renamed axis": (
        "contract", lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_param", "N"),
        "inputs_embeds",
    ),
    "fixed axis": (
        "contract", lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 1), "inputs_embeds",
    ),
    "missing output": ("contract", lambda m: m.graph.output.pop(), "present.7.value"),
    "stack trace": ("metadata", lambda m: metadata(first(m), "pkg.torch.onnx.stack_trace", "x.py"), "give_logits"),
    "model metadata": ("metadata", lambda m: metadata(m, "author", "me"), ""),
    "path in allowed metadata": (
        "path", lambda m: metadata(first(m), "qwen_export.idea", "/" + "home/me/model.py"), "give_logits",
    ),
    "path in a doc string": ("path", lambda m: setattr(first(m), "doc_string", "C:" + r"\models\x.py"), "give_logits"),
    "path in a name": ("path", lambda m: setattr(first(m), "name", "/" + "home/me/node"), "/" + "home/me/node"),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPH_DAMAGE)
def test_damage_to_a_graph_is_found(copy_of: Callable[[str], Path], name: str) -> None:
    rule, change, node = GRAPH_DAMAGE[name]
    package = copy_of("vlm")
    change_graph(package, change)
    report = audit(package, deep=True)
    assert not report.ok
    places = {(finding.graph, finding.node) for finding in report.findings if finding.rule == rule}
    assert places, report.findings
    if node:
        assert node in {place for _, place in places}, report.findings
    assert all(graph.startswith("decoder/") for graph, _ in places)


def test_ranges_are_judged_over_both_graphs_of_a_file(copy_of: Callable[[str], Path]) -> None:
    package = copy_of("decode")
    change_graph(package, lambda model: place(model, "norm", offset="0"), "decoder/decode.onnx")
    report = audit(package)
    found = [(finding.graph, finding.node) for finding in report.findings if finding.rule == "data-range"]
    assert ("decoder/decode.onnx", "norm") in found


def test_a_weight_that_no_graph_has_is_found(copy_of: Callable[[str], Path]) -> None:
    package = copy_of("vlm")
    change_graph(package, lambda model: model.graph.initializer.remove(weight(model, "norm")))
    report = audit(package)
    assert {"unbound", "orphan-bytes"} <= rules(report)


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
