"""A workshop for damaged and unusual checkpoints: take the tiny one apart, change it, write it anew."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Stored:
    """A tensor as safetensors stores it."""

    dtype: str
    shape: list[int]
    data: bytes


@dataclass
class Workshop:
    """The raw tensors and the config of a checkpoint, to be changed and written."""

    source: Path
    tensors: dict[str, Stored]
    config: dict[str, Any] = field(default_factory=dict)

    def rename(self, change: Callable[[str], str]) -> None:
        """Change every key."""
        self.tensors = {change(key): tensor for key, tensor in self.tensors.items()}

    def write(self, folder: Path, *, shards: int = 1, index: bool = True, name: str = "model") -> Path:
        """Write as one file, or as `shards` files with or without an index."""
        folder.mkdir(parents=True, exist_ok=True)
        for file in self.source.iterdir():
            if file.suffix in (".json", ".jinja") and "index" not in file.name:
                shutil.copy(file, folder)
        (folder / "config.json").write_text(json.dumps(self.config), encoding="utf-8")
        if shards == 1:
            write_safetensors(folder / "model.safetensors", self.tensors)
            return folder
        keys = list(self.tensors)
        places: dict[str, str] = {}
        for number in range(shards):
            file_name = f"{name}-{number + 1:05}-of-{shards:05}.safetensors"
            part = keys[number::shards]
            write_safetensors(folder / file_name, {key: self.tensors[key] for key in part})
            places |= dict.fromkeys(part, file_name)
        if index:
            content = {"metadata": {}, "weight_map": places}
            (folder / "model.safetensors.index.json").write_text(json.dumps(content), encoding="utf-8")
        return folder


def write_safetensors(file: Path, tensors: dict[str, Stored]) -> None:
    """The format by hand, so that what is written may be wrong on purpose."""
    header: dict[str, Any] = {}
    start = 0
    for key, tensor in tensors.items():
        stop = start + len(tensor.data)
        header[key] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensor.data for tensor in tensors.values()))
