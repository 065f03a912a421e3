"""Audit of graphs: every kind of damage is found, with graph, node and rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from qwen_export.package import audit
from tests.package.damage import change_graph, rules


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
