"""The manifest: what a package holds, what it was made of, and by which versions.

`manifest.json` holds no absolute path and no time, so that the same export gives the same bytes anywhere. Every file of
the package is listed with its size and SHA-256, the manifest itself excepted.
"""

from __future__ import annotations

import json
import platform
import re
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

from qwen_export import __version__
from qwen_export.bindings import TRANSFORMS, Binding, Bindings
from qwen_export.contract import COMPONENTS, TEXT
from qwen_export.errors import PackageError, QwenExportError
from qwen_export.recipe import Recipe, recipe_from_dict
from qwen_export.weights.layout import ITEM_BYTES

MANIFEST = "manifest.json"
FORMAT = "qwen_export package"
FORMAT_VERSION = 1
PRESENT, ABSENT = "present", "absent"
_LIBRARIES = ("torch", "transformers", "onnxscript", "onnx", "onnx-ir", "numpy", "ml_dtypes", "safetensors")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FileRecord:
    """One file of the package."""

    size: int
    sha256: str


@dataclass(frozen=True)
class TensorRecord:
    """One checkpoint tensor that went into the package."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class CheckpointRecord:
    """Identity of the checkpoint. `tensors` (canonical key -> record) is empty in a graph-only package."""

    config_sha256: str
    revision: str | None = None
    tensors: dict[str, TensorRecord] = field(default_factory=dict)


@dataclass(frozen=True)
class ComponentRecord:
    """One component: its graphs, the data file they share, and how the weights in it are made.

    Attributes:
        graphs: graph file -> its inputs and outputs, in the form of `GraphContract.to_dict`. The first is the
            component's graph, a second one (`decoder/decode.onnx`) reads the same data file.
        data: external data file; it exists only where the package holds its weights.
        data_bytes: planned size of the data file.
        recipe: the recipe the graphs were built with.
    """

    graphs: dict[str, dict[str, Any]]
    data: str
    data_bytes: int
    recipe: Recipe
    bindings: Bindings


@dataclass(frozen=True)
class Manifest:
    """Everything `manifest.json` says."""

    weights: str
    recipe: Recipe
    checkpoint: CheckpointRecord
    components: dict[str, ComponentRecord]
    versions: dict[str, str]
    files: dict[str, FileRecord] = field(default_factory=dict)
    missing_assets: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def has_weights(self) -> bool:
        """False for a graph-only package."""
        return self.weights == PRESENT

    def to_json(self) -> str:
        """The text of `manifest.json`."""
        document = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "weights": self.weights,
            "versions": self.versions,
            "recipe": self.recipe.to_dict(),
            "checkpoint": asdict(self.checkpoint),
            "components": {name: _component_json(record) for name, record in self.components.items()},
            "files": {path: asdict(self.files[path]) for path in sorted(self.files)},
            "missing_assets": list(self.missing_assets),
            "warnings": list(self.warnings),
        }
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"

    def with_files(self, files: dict[str, FileRecord]) -> Manifest:
        """The same manifest over other files."""
        return replace(self, files=files)


def current_versions() -> dict[str, str]:
    """Versions of the libraries that decide what an export writes; those not installed are left out."""
    found = {"qwen_export": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json` into a folder that nobody reads yet."""
    (folder / MANIFEST).write_bytes(manifest.to_json().encode("utf-8"))


def holds_manifest(folder: Path) -> bool:
    """Whether a folder is a package of ours, damaged or not."""
    try:
        document = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("format") == FORMAT


def read_manifest(folder: Path) -> Manifest:
    """Read and check a package's manifest.

    Raises:
        PackageError: there is none, it is not ours, of a later format, or it does not hold together.
    """
    file = folder / MANIFEST
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PackageError(
            f"{folder} is not a package: it has no {MANIFEST}. Export one with `qwen-export vlm`."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise PackageError(f"{file} cannot be read as JSON ({error}). Export the package again.") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise PackageError(f"{file} is not a manifest of qwen-export. Export a package with `qwen-export vlm`.")
    if document.get("format_version") != FORMAT_VERSION:
        raise PackageError(
            f"{file} has format version {document.get('format_version')!r}; this version of qwen-export reads "
            f"{FORMAT_VERSION}. Use the version that wrote it, or export again."
        )
    try:
        return _parse(document, str(file))
    except QwenExportError as error:
        raise PackageError(
            f"{file} is damaged, or of another version of qwen-export than {__version__}: {error} "
            "Export the package again."
        ) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PackageError(f"{file} is damaged ({type(error).__name__}: {error}). Export the package again.") from None


def is_plain_path(path: str) -> bool:
    """Whether a path written in a package stays inside it: relative, POSIX, no `..`, no drive, no backslash."""
    parts = PurePosixPath(path).parts
    plain = bool(parts) and path == "/".join(parts) and not any(part in ("..", ".", "/") for part in parts)
    return plain and "\\" not in path and ":" not in path and "\0" not in path


def _component_json(record: ComponentRecord) -> dict[str, Any]:
    return {
        "graphs": record.graphs,
        "data": record.data,
        "data_bytes": record.data_bytes,
        "recipe": record.recipe.to_dict(),
        "bindings": {name: binding.to_dict() for name, binding in record.bindings.items()},
    }


def _parse(document: dict[str, Any], where: str) -> Manifest:
    checkpoint = document["checkpoint"]
    manifest = Manifest(
        weights=document["weights"],
        recipe=recipe_from_dict(document["recipe"], f"{where}, recipe"),
        checkpoint=CheckpointRecord(
            _text(checkpoint["config_sha256"]),
            checkpoint["revision"],
            {
                key: TensorRecord(_text(t["dtype"]), _sizes(t["shape"]), _hash(t["sha256"]))
                for key, t in checkpoint["tensors"].items()
            },
        ),
        components={
            _one_of(name, (*COMPONENTS, TEXT)): _parse_component(record, where)
            for name, record in document["components"].items()
        },
        versions={_text(name): _text(version) for name, version in document["versions"].items()},
        files={
            _inside(path): FileRecord(_size(record["size"]), _hash(record["sha256"]))
            for path, record in document["files"].items()
        },
        missing_assets=tuple(_text(name) for name in document["missing_assets"]),
        warnings=tuple(_text(sentence) for sentence in document["warnings"]),
    )
    _one_of(manifest.weights, (PRESENT, ABSENT))
    if not manifest.components:
        raise ValueError("it lists no component")
    return manifest


def _parse_component(record: dict[str, Any], where: str) -> ComponentRecord:
    if not record["graphs"]:
        raise ValueError("a component without a graph")
    return ComponentRecord(
        graphs={_inside(path): _interface(sides) for path, sides in record["graphs"].items()},
        data=_inside(record["data"]),
        data_bytes=_size(record["data_bytes"]),
        recipe=recipe_from_dict(record["recipe"], f"{where}, recipe of a component"),
        bindings={_text(name): _binding(data) for name, data in record["bindings"].items()},
    )


def _interface(sides: dict[str, Any]) -> dict[str, Any]:
    for side in ("inputs", "outputs"):
        for spec in sides[side]:
            _text(spec["name"]), _text(spec["dtype"]), list(spec["shape"])
    return sides


def _binding(data: dict[str, Any]) -> Binding:
    binding = Binding.from_dict(data)
    _one_of(binding.dtype, tuple(ITEM_BYTES))
    _one_of(binding.transform, TRANSFORMS)
    _sizes(binding.shape)
    for part in binding.parts:
        if part.tensor is not None:
            _text(part.tensor)
        _size(part.count)
        float(part.scale), float(part.fill)
        if part.group is not None:
            blocks, groups, pick = part.group
            if not (blocks > 0 and 0 <= pick < groups):
                raise ValueError(f"impossible group {part.group}")
    return binding


def _one_of(value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"{value!r} is none of {', '.join(allowed)}")
    return str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, found {value!r}")
    return value


def _hash(value: Any) -> str:
    if not _SHA256.fullmatch(_text(value)):
        raise ValueError(f"{value!r} is no SHA-256")
    return str(value)


def _size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no size")
    return value


def _sizes(value: Any) -> tuple[int, ...]:
    return tuple(_size(item) for item in value)


def _inside(path: Any) -> str:
    if not is_plain_path(_text(path)):
        raise ValueError(f"the path {path!r} leaves the package")
    return str(path)
