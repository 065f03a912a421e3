"""Every node, in every nested subgraph, is an operator of the default domain and valid under its schema at opset 24."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

import onnx
from onnx import defs

from qwen_export.contract import OPSET
from qwen_export.package.audit.report import Finding

DEFAULT_DOMAINS = ("", "ai.onnx")
MAX_IR_VERSION = 13


def walk(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and every subgraph nested in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from walk(attribute.g)
            elif attribute.type == onnx.AttributeProto.GRAPHS:
                for inner in attribute.graphs:
                    yield from walk(inner)


def inventory(model: onnx.ModelProto) -> dict[str, int]:
    """Operator -> number of nodes, most frequent first. Operators outside the default domain are spelled with it."""
    counts: Counter[str] = Counter()
    for graph in walk(model.graph):
        counts.update(label(node) for node in graph.node)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def label(node: onnx.NodeProto) -> str:
    """Operator name, with its domain where that is not the default one."""
    return node.op_type if node.domain in DEFAULT_DOMAINS else f"{node.domain}::{node.op_type}"


def check_operators(file: str, model: onnx.ModelProto) -> Iterator[Finding]:
    """Findings on the model header and on every node."""
    yield from _header(file, model)
    for graph in walk(model.graph):
        for position, node in enumerate(graph.node):
            name = node.name or f"node {position} of {graph.name or 'the graph'}"
            for rule, message in _node(node):
                yield Finding(rule, message, file, name)


def check_wiring(file: str, model: onnx.ModelProto) -> Iterator[Finding]:
    """onnx's own checker: names are defined before use and only once, types and attributes are well formed.

    Weights outside the file are shown to it as graph inputs, so that it needs no data.
    """
    light = onnx.ModelProto()
    light.CopyFrom(model)
    outside = [tensor for tensor in light.graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
    given = {value.name for value in light.graph.input}
    for tensor in outside:
        if tensor.name not in given:
            light.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        light.graph.initializer.remove(tensor)
    try:
        onnx.checker.check_model(light)
    except (onnx.checker.ValidationError, ValueError, UnicodeDecodeError) as error:
        yield Finding("checker", " ".join(str(error).split())[:500], file)


def _header(file: str, model: onnx.ModelProto) -> Iterator[Finding]:
    if not 1 <= model.ir_version <= MAX_IR_VERSION:
        yield Finding("ir-version", f"IR version {model.ir_version}; {MAX_IR_VERSION} is the highest allowed.", file)
    versions = {entry.domain: entry.version for entry in model.opset_import}
    for domain, version in versions.items():
        if domain not in DEFAULT_DOMAINS:
            yield Finding("domain", f"imports the operator domain {domain!r}.", file)
        elif version != OPSET:
            yield Finding("opset", f"imports opset {version} instead of {OPSET}.", file)
    if not any(domain in versions for domain in DEFAULT_DOMAINS):
        yield Finding("opset", f"does not import opset {OPSET}.", file)
    for function in model.functions:
        yield Finding("local-function", f"defines the function {function.domain}::{function.name}.", file)
    if model.training_info:
        yield Finding("training-info", "holds training graphs.", file)


def _node(node: onnx.NodeProto) -> Iterator[tuple[str, str]]:
    if node.domain not in DEFAULT_DOMAINS:
        yield "domain", f"{label(node)} is outside the default domain."
        return
    schema = _schema(node.op_type)
    if schema is None:
        yield "unknown-operator", f"{node.op_type} is no operator of opset {OPSET}."
        return
    if schema.deprecated:
        yield "deprecated-operator", f"{node.op_type} is deprecated in opset {OPSET}."
    if node.overload:
        yield "unknown-operator", f"{node.op_type} asks for the overload {node.overload!r}."
    yield from _attributes(node, schema)
    yield from _arity(node, "input", node.input, schema.inputs, schema.min_input, schema.max_input)
    yield from _arity(node, "output", node.output, schema.outputs, schema.min_output, schema.max_output)


@cache
def _schema(operator: str) -> defs.OpSchema | None:
    try:
        return defs.get_schema(operator, OPSET, "")
    except defs.SchemaError:
        return None


@cache
def _attribute_types(operator: str) -> dict[str, tuple[int, bool]]:
    schema = defs.get_schema(operator, OPSET, "")
    types = {name: int(attr.type) for name, attr in schema.attributes.items()}  # type: ignore[call-overload]
    return {name: (types[name], attr.required) for name, attr in schema.attributes.items()}


def _attributes(node: onnx.NodeProto, schema: defs.OpSchema) -> Iterator[tuple[str, str]]:
    known = _attribute_types(node.op_type)
    seen = set()
    for attribute in node.attribute:
        name = attribute.name
        if name not in known:
            yield "attribute", f"{node.op_type} has no attribute {name!r} in opset {OPSET}."
        elif attribute.type != known[name][0]:
            yield "attribute", f"attribute {name!r} of {node.op_type} has the wrong type."
        if attribute.ref_attr_name:
            yield "attribute", f"attribute {name!r} refers to {attribute.ref_attr_name!r} of a function."
        if name in seen:
            yield "attribute", f"attribute {name!r} is given twice."
        seen.add(name)
    for name, (_, required) in known.items():
        if required and name not in seen:
            yield "attribute", f"{node.op_type} lacks its attribute {name!r}."


def _arity(
    node: onnx.NodeProto,
    side: str,
    names: Sequence[str],
    formal: Sequence[defs.OpSchema.FormalParameter],
    least: int,
    most: int,
) -> Iterator[tuple[str, str]]:
    if not least <= len(names) <= most:
        allowed = str(least) if least == most else f"{least} to {most}"
        yield f"{side}-count", f"{node.op_type} has {len(names)} {side}s; its schema allows {allowed}."
    if side == "input":
        for name, parameter in zip(names, formal, strict=False):
            if not name and parameter.option == defs.OpSchema.FormalParameterOption.Single:
                yield "input-count", f"{node.op_type} lacks its input {parameter.name!r}."
