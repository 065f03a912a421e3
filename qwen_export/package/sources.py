"""What a package is made from: a checkpoint, or for graphs alone just a config."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path

from qwen_export.checkpoint import ASSET_FILES, Snapshot, components_of, expected_tensors, open_config, open_snapshot
from qwen_export.checkpoint.locate import revision_of
from qwen_export.contract import TEXT, VISION_ENCODER
from qwen_export.errors import CheckpointError, UsageError
from qwen_export.model_config import ModelConfig
from qwen_export.package.manifest import CheckpointRecord
from qwen_export.package.open import Package
from qwen_export.weights.layout import ITEM_BYTES


@dataclass(frozen=True)
class Source:
    """Config, assets and, unless only graphs are wanted, weights.

    Attributes:
        name: what the user called it.
        folder: its folder, None for a config without one.
        assets: asset name -> file, or its content.
    """

    name: str
    folder: Path | None
    config: ModelConfig
    assets: dict[str, Path | bytes]
    identity: CheckpointRecord
    snapshot: Snapshot | None

    def check(self, components: Iterable[str]) -> None:
        """Raise `CheckpointError` unless these components can be made of it."""
        components = tuple(components)
        if VISION_ENCODER in components and self.config.vision is None:
            raise CheckpointError(
                f"{self.name} is a text-only model (config.json has no vision_config). Export it with "
                f"`qwen-export text --checkpoint {self.name} --output PACKAGE`."
            )
        if self.snapshot is not None:
            self.snapshot.check(components)

    def weight_bytes(self, components: Iterable[str], dtype: str) -> int:
        """Estimate of the bytes these components' weights will take; 0 where only graphs are wanted."""
        if self.snapshot is None:
            return 0
        size = ITEM_BYTES[dtype]
        return sum(
            size * prod(shape)
            for component in components
            for shape in expected_tensors(self.config, [component]).values()
        )


def open_source(checkpoint: str | Path, *, revision: str | None = None, graph_only: bool = False) -> Source:
    """Open what an export reads.

    Args:
        checkpoint: folder or hub id; with `graph_only` also a config file, a folder without weights, or the name of a
            config that comes with the project.
    """
    if not graph_only:
        snapshot = open_snapshot(checkpoint, revision=revision)
        identity = checkpoint_identity(snapshot)
        return Source(str(checkpoint), snapshot.folder, snapshot.config, dict(snapshot.assets), identity, snapshot)
    config = open_config(checkpoint, revision)
    path = Path(checkpoint).expanduser()
    folder = path.parent if path.is_file() else path if path.is_dir() else None
    assets: dict[str, Path | bytes] = {}
    if path.is_dir():
        assets = {name: path / name for name in ASSET_FILES if (path / name).is_file()}
    elif path.is_file():
        assets = {"config.json": path.read_bytes()}
    else:
        assets = {"config.json": (json.dumps(config.raw, indent=2, ensure_ascii=False) + "\n").encode("utf-8")}
    content = assets["config.json"]
    raw = content if isinstance(content, bytes) else content.read_bytes()
    revision = revision_of(path) if path.is_dir() else None
    identity = CheckpointRecord(hashlib.sha256(raw).hexdigest(), revision)
    return Source(str(checkpoint), folder if path.is_dir() else None, config, assets, identity, None)


def checkpoint_identity(snapshot: Snapshot) -> CheckpointRecord:
    """Identity of a checkpoint before its tensors are read."""
    return CheckpointRecord(snapshot.config_sha256, snapshot.revision)


def check_fit(package: Package, config: ModelConfig, identity: CheckpointRecord, name: str) -> None:
    """Raise `CheckpointError` unless a config states the facts that a package's graphs were built on."""
    if package.manifest.checkpoint.config_sha256 == identity.config_sha256:
        return
    differ = facts_that_differ(package.config, config)
    if TEXT in package.components:
        differ = [fact for fact in differ if not fact.startswith(("vision_config", "image_token", "video_token"))]
    if differ:
        more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
        raise CheckpointError(
            f"{name} does not fit the graphs in {package.folder}: {', '.join(differ[:3])}{more} differ in config.json. "
            "Export the graphs of this checkpoint's own config."
        )


def facts_that_differ(one: ModelConfig, other: ModelConfig) -> list[str]:
    """Names of the config facts that shape graphs or weights and differ between two configs."""
    out = []
    for part in ("text", "vision"):
        a, b = getattr(one, part), getattr(other, part)
        if (a is None) != (b is None):
            out.append(f"{part}_config")
        elif a is not None:
            out += [f"{part}_config.{name}" for name in vars(a) if vars(a)[name] != vars(b)[name]]
    out += [name for name in ("image_token_id", "video_token_id") if getattr(one, name) != getattr(other, name)]
    return out


def check_components(config: ModelConfig, components: Iterable[str]) -> tuple[str, ...]:
    """The asked-for components in contract order; unknown names are refused."""
    known = (*components_of(config), TEXT)
    asked = tuple(components)
    for name in asked:
        if name not in known:
            raise UsageError(f"There is no component {name!r}; choose from {', '.join(known)}.")
    return tuple(name for name in known if name in asked)
