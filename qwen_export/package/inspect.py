"""Inspect a checkpoint or a package: what is in it, how large, which operators, which contract. No weight is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from qwen_export.checkpoint import ASSET_FILES, Snapshot, components_of, expected_tensors, open_snapshot
from qwen_export.contract import TEXT
from qwen_export.errors import PackageError
from qwen_export.model_config import ModelConfig
from qwen_export.package.audit import load_graph
from qwen_export.package.audit.files import NEEDED_ASSETS
from qwen_export.package.audit.operators import inventory
from qwen_export.package.graphs import expected_contract
from qwen_export.package.manifest import holds_manifest
from qwen_export.package.node_marks import layer_inventory
from qwen_export.package.open import Package, open_package
from qwen_export.package.stage import absolute, old_folder
from qwen_export.recipe import Recipe

CHECKPOINT, PACKAGE = "checkpoint", "package"


@dataclass(frozen=True)
class Piece:
    """One component: its tensors (checkpoint) or stored weights (package)."""

    component: str
    num_tensors: int
    num_bytes: int
    dtypes: dict[str, int]
    """Tensor dtype -> number of tensors."""
    num_nodes: int = 0
    """Nodes of its graph, nested ones included; 0 for a checkpoint."""


@dataclass(frozen=True)
class Inspection:
    """What was found.

    Attributes:
        kind: `checkpoint` or `package`.
        facts: one line each: model, layers, tokens, versions, revision, ...
        contract: graph -> its inputs and outputs, in the form of `GraphContract.to_dict`.
        operators: graph -> operator -> number of nodes.
        files: file -> bytes.
        layers: graph -> layer or other module -> operator -> number of nodes, where it was asked for.
    """

    kind: str
    path: str
    facts: dict[str, Any]
    pieces: tuple[Piece, ...]
    contract: dict[str, dict[str, Any]]
    operators: dict[str, dict[str, int]] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    missing_assets: tuple[str, ...] = ()
    skipped_tensors: tuple[str, ...] = ()
    layers: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def inspect(path: str | Path, *, revision: str | None = None, layers: bool = False) -> Inspection:
    """Look into a package folder, a checkpoint folder, or a hub checkpoint. `layers`: its nodes by layer too."""
    folder = absolute(Path(path))
    if holds_manifest(folder) or (not folder.exists() and old_folder(folder).exists()):
        return _package(open_package(folder), layers)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise PackageError(
            f"{path} is neither a package (no manifest.json of ours) nor a checkpoint (no config.json). Check the path."
        )
    return _checkpoint(open_snapshot(path, revision=revision))


def _checkpoint(snapshot: Snapshot) -> Inspection:
    config, recipe = snapshot.config, Recipe()
    components = components_of(config)
    pieces = []
    for component in components:
        infos = [snapshot.tensors[key] for key in expected_tensors(config, [component]) if key in snapshot.tensors]
        dtypes = dict(Counter(info.dtype for info in infos))
        pieces.append(Piece(component, len(infos), sum(info.nbytes for info in infos), dtypes))
    distinct = {(info.file, info.start): info.nbytes for info in snapshot.tensors.values()}
    facts = {
        **_model_facts(config),
        "tensors": len(distinct),
        "tensor bytes": sum(distinct.values()),
        "skipped tensors": len(snapshot.skipped),
        "shards": len(snapshot.weight_files),
        "revision": snapshot.revision,
        "config sha256": snapshot.config_sha256,
    }
    files = [*snapshot.weight_files, *snapshot.assets.values()]
    return Inspection(
        CHECKPOINT,
        str(snapshot.folder),
        facts,
        tuple(pieces),
        {name: expected_contract(name, config, recipe).to_dict() for name in components},
        files={file.name: file.stat().st_size for file in files},
        missing_assets=tuple(name for name in ASSET_FILES if name in NEEDED_ASSETS and name not in snapshot.assets),
        skipped_tensors=snapshot.skipped,
    )


def _package(package: Package, by_layer: bool) -> Inspection:
    manifest = package.manifest
    pieces: list[Piece] = []
    operators: dict[str, dict[str, int]] = {}
    contract: dict[str, dict[str, Any]] = {}
    layers: dict[str, dict[str, dict[str, int]]] = {}
    for component, record in manifest.components.items():
        for file in record.graphs:
            try:
                model = load_graph(package.folder / file)
            except ValueError as error:
                raise PackageError(f"{package.folder / file} cannot be read as an ONNX graph: {error}.") from None
            operators[file] = inventory(model)
            if by_layer:
                layers[file] = layer_inventory(model)
        contract |= record.graphs
        dtypes = dict(Counter(binding.dtype for binding in record.bindings.values()))
        nodes = sum(operators[next(iter(record.graphs))].values())
        pieces.append(Piece(component, len(record.bindings), record.data_bytes, dtypes, nodes))
    facts = {
        **_model_facts(package.config),
        "weights": manifest.weights,
        "dtype": package.recipe.dtype,
        "logits": package.recipe.logits,
        "target": package.recipe.target,
        "kv cache": package.recipe.kv_cache,
        "total bytes": sum(record.size for record in manifest.files.values()),
        "checkpoint revision": manifest.checkpoint.revision,
        "checkpoint tensors": len(manifest.checkpoint.tensors),
        **{f"version of {name}": version for name, version in manifest.versions.items()},
    }
    return Inspection(
        PACKAGE,
        str(package.folder),
        facts,
        tuple(pieces),
        contract,
        operators,
        {path: record.size for path, record in manifest.files.items()},
        manifest.missing_assets,
        layers=layers,
    )


def _model_facts(config: ModelConfig) -> dict[str, Any]:
    text, vision = config.text, config.vision
    facts: dict[str, Any] = {
        "model type": config.raw.get("model_type"),
        "layers": f"{text.num_hidden_layers} ({len(text.full_layers)} with full attention)",
        "hidden size": text.hidden_size,
        "vocabulary": text.vocab_size,
        "head": "tied to the embedding" if config.tie_word_embeddings else "own weights",
    }
    if vision is not None:
        facts["vision layers"] = vision.depth
        facts["vision hidden size"] = vision.hidden_size
    else:
        facts["vision layers"] = f"none: a {TEXT} model"
    return facts
