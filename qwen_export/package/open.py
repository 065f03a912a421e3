"""Open a package: check what its manifest promises and hand out paths. Nothing large is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qwen_export.contract import DECODER, GraphContract
from qwen_export.errors import CheckpointError, PackageError
from qwen_export.model_config import ModelConfig, read_config
from qwen_export.package.graphs import DECODE_GRAPH, expected_contract
from qwen_export.package.manifest import ComponentRecord, Manifest, read_manifest
from qwen_export.package.stage import absolute, settle
from qwen_export.recipe import Recipe


@dataclass(frozen=True)
class Package:
    """An opened package."""

    folder: Path
    manifest: Manifest
    config: ModelConfig

    @property
    def recipe(self) -> Recipe:
        """The recipe of the package, as it decides running and judging."""
        return self.manifest.recipe

    @property
    def components(self) -> tuple[str, ...]:
        """Components there, in contract order."""
        return tuple(self.manifest.components)

    @property
    def has_weights(self) -> bool:
        """False for a graph-only package."""
        return self.manifest.has_weights

    @property
    def decode_graph(self) -> Path | None:
        """The single-token decoder graph, where there is one."""
        record = self.manifest.components.get(DECODER)
        return self.folder / DECODE_GRAPH if record and DECODE_GRAPH in record.graphs else None

    def record(self, component: str) -> ComponentRecord:
        """A component's part of the manifest."""
        try:
            return self.manifest.components[component]
        except KeyError:
            raise PackageError(
                f"{self.folder} has no component {component}; it holds {', '.join(self.components)}."
            ) from None

    def graph_path(self, component: str) -> Path:
        """A component's graph file."""
        return self.folder / next(iter(self.record(component).graphs))

    def data_path(self, component: str) -> Path:
        """A component's external data file; absent in a graph-only package."""
        return self.folder / self.record(component).data

    def contract(self, component: str, *, single_step: bool = False) -> GraphContract:
        """Inputs and outputs of a component's graph, or of its single-token graph."""
        return expected_contract(component, self.config, self.record(component).recipe, single_step=single_step)

    def require_weights(self, verb: str) -> None:
        """Refuse a graph-only package."""
        if not self.has_weights:
            raise PackageError(
                f"{self.folder} is a graph-only package, so it cannot be used to {verb}. Give it weights first: "
                f"`qwen-export bind {self.folder} --checkpoint DIR --output PKG`."
            )


def open_package(path: str | Path) -> Package:
    """Open a package folder.

    Raises:
        PackageError: it is no package, was written by a later version, or lacks files its manifest lists.
    """
    folder = absolute(Path(path))
    settle(folder)
    if not folder.exists():
        raise PackageError(f"There is no package {path}. Export one with `qwen-export vlm`.")
    if not folder.is_dir():
        raise PackageError(f"{path} is a file, not a package folder.")
    manifest = read_manifest(folder)
    for name, record in manifest.files.items():
        file = folder / name
        if not file.is_file() or file.is_symlink():
            raise PackageError(f"{folder} is not whole: {name} is missing. `qwen-export audit` says more.")
        if file.stat().st_size != record.size:
            raise PackageError(
                f"{folder} is damaged: {name} has {file.stat().st_size:,} bytes instead of {record.size:,}. "
                "`qwen-export audit` says more."
            )
    for component, parts in manifest.components.items():
        needed = [*parts.graphs, *([parts.data] if manifest.has_weights and parts.bindings else [])]
        for name in needed:
            if name not in manifest.files:
                raise PackageError(f"{folder} is damaged: its manifest lists no {name} for the {component}.")
    try:
        config = read_config(folder)
    except CheckpointError as error:
        raise PackageError(f"{folder} is damaged: {error}") from None
    return Package(folder, manifest, config)
