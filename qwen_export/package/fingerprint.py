"""The fingerprint of a package: everything `diff` compares, small enough for git. A file of it is called a baseline.

Nodes are kept as marks (`node_marks.py`), once per kind of layer. Weights are kept by shape, by the binding that makes
them and, where the package holds them, by a hash of their bytes. Nothing in it depends on the folder, the time or the
machine: the same versions give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from qwen_export.errors import PackageError, UsageError
from qwen_export.package.audit import load_graph
from qwen_export.package.audit.operators import inventory
from qwen_export.package.manifest import ComponentRecord, Manifest, holds_manifest
from qwen_export.package.node_marks import GraphMarks, Mark, digest, mark_graph
from qwen_export.package.open import Package, open_package
from qwen_export.package.stage import absolute, old_folder
from qwen_export.recipe import Recipe, Thresholds
from qwen_export.weights import Progress, plan_layout

FORMAT, FORMAT_VERSION = "qwen_export baseline", 1
VERSIONS = ("qwen_export", "torch", "transformers", "onnxscript", "onnx", "onnx-ir")
"""Libraries that decide what a graph looks like."""
_NOT_IN_GRAPHS = ("tolerances", "thresholds", "session", "prefill_slice")
_PIECE = 1 << 24


@dataclass(frozen=True)
class Weight:
    """One bound initializer. `sha256`: of its bytes, None where they were not read."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    binding: str
    sha256: str | None = None


@dataclass(frozen=True)
class GraphFingerprint:
    """One graph file.

    Attributes:
        inputs, outputs: (name, dtype, axes) in order.
        operators: operator -> number of nodes.
        layers: layer or other module -> mark -> number of nodes.
        structure: digest of all that the outputs depend on.
    """

    opset: int
    ir_version: int
    num_bytes: int
    inputs: tuple[tuple[str, str, tuple[str, ...]], ...]
    outputs: tuple[tuple[str, str, tuple[str, ...]], ...]
    operators: dict[str, int]
    layers: dict[str, Counter[Mark]]
    structure: str
    weights: dict[str, Weight]

    @property
    def metrics(self) -> dict[str, int]:
        """The figures that thresholds are about, by the thresholds' names."""
        return {
            "nodes": sum(self.operators.values()),
            "graph_bytes": self.num_bytes,
            "weight_bytes": sum(weight.num_bytes for weight in self.weights.values()),
        }


@dataclass(frozen=True)
class Fingerprint:
    """A package, or what was kept of one. `files`: asset -> SHA-256, the files beside the graphs."""

    weights: str
    config_sha256: str
    recipe: dict[str, Any]
    thresholds: Thresholds
    versions: dict[str, str]
    graphs: dict[str, GraphFingerprint]
    files: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "weights": self.weights,
            "config_sha256": self.config_sha256,
            "versions": self.versions,
            "recipe": self.recipe,
            "thresholds": asdict(self.thresholds),
            "files": self.files,
            "graphs": {path: _graph_json(graph) for path, graph in self.graphs.items()},
        }

    def to_json(self) -> str:
        """The text of a baseline file: one line per kind of node, so that git shows what changed."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"


def fingerprint(package: Package, *, unread: Collection[str] = (), progress: Progress | None = None) -> Fingerprint:
    """Take a package's fingerprint.

    Args:
        unread: data files whose bytes need not be hashed.

    Raises:
        PackageError: a graph cannot be read.
    """
    manifest = package.manifest
    graphs = {}
    for record in manifest.components.values():
        hashes = {}
        if manifest.has_weights and record.data not in unread:
            hashes = _hashes(package.folder / record.data, record, progress)
        for path in record.graphs:
            graphs[path] = _graph(package.folder / path, record, hashes)
    return Fingerprint(
        manifest.weights,
        manifest.checkpoint.config_sha256,
        graph_settings(manifest.recipe),
        manifest.recipe.thresholds,
        _versions(manifest),
        graphs,
        _assets(manifest),
    )


def baseline(package: str | Path, output: str | Path, *, progress: Progress | None = None) -> Fingerprint:
    """Write a package's fingerprint to a file, to compare later packages with.

    Raises:
        PackageError: it is no package, or a graph of it cannot be read.
        UsageError: the file cannot be written.
    """
    taken = fingerprint(open_package(package), progress=progress)
    target = absolute(Path(output))
    part = target.with_name(f".{target.name}.part")
    try:
        part.write_text(taken.to_json(), encoding="utf-8", newline="\n")
        os.replace(part, target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(f"The baseline {output} cannot be written: {error.strerror}. Choose another file.") from None
    return taken


def is_package(path: str | Path) -> bool:
    """Whether a path is a package folder rather than a baseline file."""
    folder = absolute(Path(path))
    return folder.is_dir() or holds_manifest(folder) or old_folder(folder).exists()


def read_baseline(path: str | Path) -> Fingerprint:
    """Read a baseline file.

    Raises:
        PackageError: there is none, it is not ours, or it is damaged.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PackageError(
            f"{path} is neither a package nor a baseline. Make one with `qwen-export baseline PKG -o FILE.json`."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise PackageError(f"{path} cannot be read as a baseline ({error}). Make it again.") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise PackageError(f"{path} is no baseline of qwen-export. Make one with `qwen-export baseline`.")
    if document.get("format_version") != FORMAT_VERSION:
        raise PackageError(f"{path} is a baseline of another format version than {FORMAT_VERSION}. Make it again.")
    try:
        return Fingerprint(
            document["weights"],
            document["config_sha256"],
            document["recipe"],
            Thresholds(**document["thresholds"]),
            document["versions"],
            {name: _read_graph(graph) for name, graph in document["graphs"].items()},
            document["files"],
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise PackageError(f"{path} is damaged ({type(error).__name__}: {error}). Make it again.") from None


def graph_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings of a recipe that shape graphs, with the defaults of the target filled in."""
    settings = {name: value for name, value in recipe.to_dict().items() if name not in _NOT_IN_GRAPHS}
    return {
        **settings,
        "chunk_size": recipe.effective_chunk_size,
        "attention_block": recipe.effective_attention_block,
    }


def _versions(manifest: Manifest) -> dict[str, str]:
    """Without the build: `2.13.0+cpu` and `2.13.0+cu130` write the same graphs."""
    found = manifest.versions
    return {name: found[name].partition("+")[0] for name in VERSIONS if name in found}


def _assets(manifest: Manifest) -> dict[str, str]:
    ours = {path for record in manifest.components.values() for path in (*record.graphs, record.data)}
    return {path: manifest.files[path].sha256 for path in sorted(manifest.files) if path not in ours}


def _graph(file: Path, record: ComponentRecord, hashes: dict[str, str]) -> GraphFingerprint:
    try:
        model = load_graph(file)
    except (OSError, ValueError) as error:
        raise PackageError(f"{file} cannot be read as an ONNX graph: {error}. Export the package again.") from None
    slots = plan_layout(record.bindings).slots
    used = {tensor.name for tensor in model.graph.initializer}
    weights = {
        name: Weight(
            binding.dtype,
            binding.shape,
            slots[name].num_bytes,
            digest(json.dumps(binding.to_dict(), sort_keys=True)),
            hashes.get(name),
        )
        for name, binding in record.bindings.items()
        if name in used
    }
    marks: GraphMarks = mark_graph(model.graph, set(record.bindings))
    return GraphFingerprint(
        next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0),
        model.ir_version,
        file.stat().st_size,
        _interface(model.graph.input),
        _interface(model.graph.output),
        inventory(model),
        marks.layers,
        marks.structure,
        weights,
    )


def _interface(values: Any) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    found = []
    for value in values:
        kind = value.type.tensor_type
        axes = tuple(axis.dim_param or str(axis.dim_value) for axis in kind.shape.dim)
        found.append((value.name, onnx.TensorProto.DataType.Name(kind.elem_type).lower(), axes))
    return tuple(found)


def _hashes(file: Path, record: ComponentRecord, progress: Progress | None) -> dict[str, str]:
    """SHA-256 of each weight's bytes; 16 MiB are held at a time."""
    found = {}
    layout = plan_layout(record.bindings)
    with open(file, "rb") as data:
        for name, slot in layout.slots.items():
            data.seek(slot.offset)
            sha = hashlib.sha256()
            for start in range(0, slot.num_bytes, _PIECE):
                sha.update(data.read(min(_PIECE, slot.num_bytes - start)))
            found[name] = sha.hexdigest()
            if progress:
                progress.count_bytes(slot.end, layout.size, name)
    return found


def _graph_json(graph: GraphFingerprint) -> dict[str, Any]:
    """Layers with equal marks share one list, told by its digest."""
    lists: dict[str, list[list[Any]]] = {}
    layers: dict[str, str] = {}
    for layer, marks in graph.layers.items():
        rows = [[*mark, count] for mark, count in sorted(marks.items())]
        layers[layer] = digest(json.dumps(rows))
        lists[layers[layer]] = rows
    return {
        "opset": graph.opset,
        "ir_version": graph.ir_version,
        "num_bytes": graph.num_bytes,
        "structure": graph.structure,
        "inputs": [" ".join((name, dtype, f"[{', '.join(axes)}]")) for name, dtype, axes in graph.inputs],
        "outputs": [" ".join((name, dtype, f"[{', '.join(axes)}]")) for name, dtype, axes in graph.outputs],
        "operators": graph.operators,
        "layers": layers,
        "nodes": {name: [" | ".join(map(str, row)) for row in rows] for name, rows in lists.items()},
        "weights": {
            name: " | ".join(
                [weight.dtype, "x".join(map(str, weight.shape)), str(weight.num_bytes), weight.binding]
                + ([weight.sha256] if weight.sha256 else [])
            )
            for name, weight in graph.weights.items()
        },
    }


def _read_graph(data: dict[str, Any]) -> GraphFingerprint:
    lists = {name: _read_marks(rows) for name, rows in data["nodes"].items()}
    return GraphFingerprint(
        data["opset"],
        data["ir_version"],
        data["num_bytes"],
        tuple(_read_value(text) for text in data["inputs"]),
        tuple(_read_value(text) for text in data["outputs"]),
        data["operators"],
        {layer: lists[name] for layer, name in data["layers"].items()},
        data["structure"],
        {name: _read_weight(text) for name, text in data["weights"].items()},
    )


def _read_marks(rows: list[str]) -> Counter[Mark]:
    marks: Counter[Mark] = Counter()
    for row in rows:
        *mark, count = row.split(" | ")
        marks[Mark(*mark)] = int(count)
    return marks


def _read_value(text: str) -> tuple[str, str, tuple[str, ...]]:
    head, _, axes = text.removesuffix("]").partition(" [")
    name, dtype = head.split(" ")
    return name, dtype, tuple(axes.split(", ")) if axes else ()


def _read_weight(text: str) -> Weight:
    dtype, shape, num_bytes, binding, *content = text.split(" | ")
    sizes = tuple(int(size) for size in shape.split("x") if size)
    return Weight(dtype, sizes, int(num_bytes), binding, content[0] if content else None)
