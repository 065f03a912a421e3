"""Change a file of a package and its manifest together, as an export with other files would have written them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path


def alter(folder: Path, name: str, edit: Callable[[dict], object]) -> None:
    """Edit one JSON file of a package in place."""
    document = json.loads((folder / name).read_text(encoding="utf-8"))
    edit(document)
    replace(folder, name, json.dumps(document).encode("utf-8"))


def replace(folder: Path, name: str, content: bytes | None) -> None:
    """Give a file other content, or remove it."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    if content is None:
        (folder / name).unlink()
        del manifest["files"][name]
    else:
        (folder / name).write_bytes(content)
        manifest["files"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
