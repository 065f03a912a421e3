"""Marks of nodes: what a node is and where it came from, whatever its name and number.

A mark holds the module path, the operator, the idea it was lowered from, a digest of its settings (attributes, values
of constants) and a digest of its wiring (who makes each input). Marks are relative to the layer, so that layers of one
kind have equal marks. `structure` is one digest of everything that the outputs depend on: it sees what marks cannot,
such as two equal producers exchanged.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import onnx

from qwen_export.package.audit.operators import label, walk

MODULE, IDEA = "qwen_export.module", "qwen_export.idea"
_LAYER = re.compile(r"^(.*\.)?((?:layers|blocks)\.(\d+))(?=\.|$)")


class Mark(NamedTuple):
    """What a node is. `module` is relative to its layer; `settings` and `wiring` are digests."""

    module: str
    operator: str
    idea: str
    settings: str
    wiring: str


class Place(NamedTuple):
    """Where a node came from: its layer (or another top module), and the module inside it."""

    layer: str
    module: str
    number: int | None
    """Number of the layer, where there is one."""


def place_of(node: onnx.NodeProto) -> Place:
    """The place that a node's metadata names."""
    module = _metadata(node).get(MODULE, "")
    found = _LAYER.match(module)
    if found is None:
        return Place(module, "", None)
    return Place(found.group(0), module[found.end() + 1 :], int(found.group(3)))


def digest(*parts: object) -> str:
    """Twelve hex digits of SHA-256 over the parts' representations."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:12]


def layer_inventory(model: onnx.ModelProto) -> dict[str, dict[str, int]]:
    """Layer or other module -> operator -> number of nodes, most frequent first; nested graphs are counted in."""
    layers: dict[str, Counter[str]] = defaultdict(Counter)
    for graph in walk(model.graph):
        for node in graph.node:
            layers[place_of(node).layer][label(node)] += 1
    return {layer: dict(counts.most_common()) for layer, counts in layers.items()}


@dataclass
class GraphMarks:
    """All marks of a graph: layer -> mark -> number of nodes, nested graphs included."""

    layers: dict[str, Counter[Mark]]
    structure: str


def mark_graph(graph: onnx.GraphProto, bound: set[str]) -> GraphMarks:
    """Mark every node. `bound`: initializers whose values are weights, told by name; others are told by value."""
    scope = _Scope()
    for position, value in enumerate(graph.input):
        scope.values[value.name] = _Value(f"input {value.name}", f"input {position}")
    for tensor in graph.initializer:
        if tensor.name in bound:
            scope.values[tensor.name] = _Value(f"weight {tensor.name}", f"weight {tensor.name}")
        else:
            told = f"constant {digest(tensor.data_type, list(tensor.dims), _content(tensor))}"
            scope.values[tensor.name] = _Value(told, told, constant=True)
    walker = _Walker({value.name for value in graph.output})
    walker.walk(graph, scope)
    results = [scope.values[value.name].cone for value in graph.output if value.name in scope.values]
    return GraphMarks(dict(walker.layers), digest(*results))


@dataclass
class _Value:
    told: str
    """What a reader says of it: depth one."""
    cone: str
    """Digest of everything it depends on."""
    place: Place | None = None
    constant: bool = False


@dataclass
class _Scope:
    values: dict[str, _Value] = field(default_factory=dict)


class _Walker:
    def __init__(self, results: set[str]) -> None:
        self.layers: dict[str, Counter[Mark]] = defaultdict(Counter)
        self._results = results
        self._written: Counter[str] = Counter()

    def walk(self, graph: onnx.GraphProto, scope: _Scope) -> None:
        for node in graph.node:
            self._mark(node, scope)

    def _mark(self, node: onnx.NodeProto, scope: _Scope) -> None:
        place, idea = place_of(node), _metadata(node).get(IDEA, "")
        read = [scope.values.get(name, _Value(name, name)) for name in node.input]
        attributes = [self._attribute(attribute, scope) for attribute in sorted(node.attribute, key=lambda a: a.name)]
        constants = [(position, value.told) for position, value in enumerate(read) if value.constant]
        wires = ["constant" if value.constant else _relative(value, place) for value in read]
        written = []
        for name in node.output:
            if name in self._results:
                written.append(self._written[place.layer])
                self._written[place.layer] += 1
        settings = digest([told for told, _ in attributes], constants)
        mark = Mark(place.module, label(node), idea, settings, digest(wires, written))
        self.layers[place.layer][mark] += 1
        cone = digest(label(node), [deep for _, deep in attributes], [value.cone for value in read])
        for position, name in enumerate(node.output):
            told = f"{place.module} {label(node)} {idea} output {position}"
            scope.values[name] = _Value(told, digest(cone, position), place)

    def _attribute(self, attribute: onnx.AttributeProto, scope: _Scope) -> tuple[str, str]:
        """What the attribute says itself, and with everything that its graph depends on."""
        if attribute.type != onnx.AttributeProto.GRAPH:
            told = f"{attribute.name} {hashlib.sha256(attribute.SerializeToString(deterministic=True)).hexdigest()}"
            return told, told
        inner = _Scope(dict(scope.values))
        for position, value in enumerate(attribute.g.input):
            inner.values[value.name] = _Value(f"formal {position}", f"formal {position}")
        self.walk(attribute.g, inner)
        results = [inner.values.get(value.name, _Value("", "")).cone for value in attribute.g.output]
        return f"{attribute.name} graph", digest(attribute.name, *results)


def _relative(value: _Value, reader: Place) -> str:
    """A producer as the reader's layer sees it: equal for all layers of one kind."""
    if value.place is None:
        told = value.told
        if reader.number is not None:
            told = re.sub(rf"\b(layers|blocks|past_key_values)\.{reader.number}\.", r"\1.*.", told)
        return told
    if value.place.layer == reader.layer:
        return f"here {value.told}"
    if value.place.number is not None and reader.number is not None:
        return f"layer {value.place.number - reader.number:+d}"
    return f"{'a layer' if value.place.number is not None else value.place.layer} {value.told}"


def _content(tensor: onnx.TensorProto) -> str:
    return hashlib.sha256(onnx.numpy_helper.to_array(tensor).tobytes()).hexdigest()


def _metadata(node: onnx.NodeProto) -> Mapping[str, str]:
    return {entry.key: entry.value for entry in node.metadata_props}
