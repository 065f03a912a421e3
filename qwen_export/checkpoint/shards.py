"""Which weight files a checkpoint folder consists of: one file, or shards with or without their index."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from qwen_export.checkpoint.header import StoredTensor, read_header
from qwen_export.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_NUMBERED = re.compile(r"-(\d+)-of-(\d+)\.safetensors$")


@dataclass(frozen=True)
class WeightFiles:
    """The weight files of a checkpoint, and what its index promises about them."""

    files: tuple[Path, ...]
    index: Path | None = None
    places: dict[str, Path] = field(default_factory=dict)
    """Raw key -> file, as the index says; empty without an index."""

    @property
    def source(self) -> Path:
        """The file that says which tensors there are: the index, or the single weight file, or the first shard."""
        return self.index or self.files[0]


def find_weight_files(folder: Path) -> WeightFiles:
    """Find the weight files; whatever is missing is named."""
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if index.is_file() and not single.is_file():
        return _read_index(index)
    if _there(single):
        return WeightFiles((single,))
    files = sorted(folder.glob("*.safetensors"))
    numbered = {file: match for file in files if (match := _NUMBERED.search(file.name))}
    if numbered:
        return WeightFiles(_complete(folder, numbered))
    if len(files) == 1 and not files[0].name.startswith("adapter"):
        return WeightFiles((files[0],))
    raise CheckpointError(f"{folder} holds no {SINGLE_FILE} and no {INDEX_FILE}{_hint(folder, files)}.")


def read_weight_files(weights: WeightFiles) -> list[tuple[Path, StoredTensor]]:
    """Every stored tensor with its file; headers only. The index must agree with the files."""
    out: list[tuple[Path, StoredTensor]] = []
    found: dict[str, Path] = {}
    for file in weights.files:
        for tensor in read_header(file):
            if tensor.raw_key in found:
                raise CheckpointError(
                    f"Tensor {tensor.raw_key} is in two files, {found[tensor.raw_key].name} and {file.name} of "
                    f"{file.parent}. Remove the file that does not belong to this checkpoint."
                )
            found[tensor.raw_key] = file
            out.append((file, tensor))
    for key, file in weights.places.items():
        if found.get(key) != file:
            where = f"it is in {found[key].name}" if key in found else "no file of the checkpoint holds it"
            raise CheckpointError(
                f"{weights.index} says that {file.name} holds tensor {key}, but {where}. "
                "Download the index and this file again, from one revision."
            )
    return out


def _read_index(index: Path) -> WeightFiles:
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
        weight_map = {str(key): str(name) for key, name in content["weight_map"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is no index of shards ({error!r}). Download it again.") from None
    folder = index.parent
    names = sorted(set(weight_map.values()))
    if not names:
        raise CheckpointError(f"{index} lists no tensor. Download it again.")
    for name in names:
        if name != Path(name).name or "\\" in name:
            raise CheckpointError(f"{index} names {name!r}, which is no plain file name. Download it again.")
    absent = [name for name in names if not _there(folder / name)]
    if absent:
        more = f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""
        raise CheckpointError(
            f"{folder / absent[0]} is missing{more}, though {index.name} lists it among {len(names)} shards. "
            "Download the missing files."
        )
    files = tuple(folder / name for name in names)
    return WeightFiles(files, index, {key: folder / name for key, name in weight_map.items()})


def _complete(folder: Path, numbered: dict[Path, re.Match[str]]) -> tuple[Path, ...]:
    """Shards without an index will do, if their own numbering says that all are there."""
    counts = {int(match[2]) for match in numbered.values()}
    stems = {file.name[: match.start()] for file, match in numbered.items()}
    if len(counts) > 1 or len(stems) > 1:
        raise CheckpointError(
            f"{folder} holds shards of more than one set ({', '.join(file.name for file in list(numbered)[:3])}, ...) "
            f"and no {INDEX_FILE} to tell which belong together. Download the index."
        )
    count = counts.pop()
    missing = sorted(set(range(1, count + 1)) - {int(match[1]) for match in numbered.values()})
    absent = [file for file in numbered if not _there(file)]
    if missing or absent:
        match = next(iter(numbered.values()))
        name = f"{stems.pop()}-{missing[0]:0{len(match[1])}}-of-{match[2]}.safetensors" if missing else absent[0].name
        raise CheckpointError(f"{folder / name} is missing; the shards are numbered up to {count}. Download it.")
    return tuple(numbered)


def _there(file: Path) -> bool:
    """Whether the file exists; a link into a hub cache whose target is gone is said to be that."""
    if file.is_file():
        return True
    if file.is_symlink():
        raise CheckpointError(
            f"{file} is a link whose target is missing: the download was interrupted or the cache was cleaned. "
            "Download it again."
        )
    return False


def _hint(folder: Path, files: list[Path]) -> str:
    if any(file.name.startswith("adapter") for file in files):
        return "; it holds an adapter. Merge the adapter into its base model first"
    if len(files) > 1:
        return f", but {len(files)} files such as {files[0].name}. Download the index"
    if any(folder.glob("*.bin")) or any(folder.glob("*.pth")):
        return "; it holds weights in another format. Save the model as safetensors first"
    if any(folder.glob("*.gguf")):
        return "; it holds GGUF files. Export from the original bf16 safetensors checkpoint"
    return ". Is this the folder of a Hugging Face checkpoint"
