"""Every way a safetensors file can be damaged ends in one sentence that names the file."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from qwen_export.checkpoint.header import read_header
from qwen_export.errors import CheckpointError

ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def safetensors(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_ranges_are_absolute_and_in_byte_order(tmp_path: Path) -> None:
    later = {"dtype": "BF16", "shape": [], "data_offsets": [24, 26]}
    content = safetensors({"__metadata__": {"format": "pt"}, "b": later, "a": ENTRY}, bytes(26))
    (tmp_path / "x.safetensors").write_bytes(content)
    first, second = read_header(tmp_path / "x.safetensors")
    assert (first.raw_key, first.dtype, first.shape) == ("a", "float32", (2, 3))
    assert (second.raw_key, second.dtype, second.shape) == ("b", "bfloat16", ())
    assert (first.start, first.stop, second.stop) == (len(content) - 26, len(content) - 2, len(content))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\x10\x00", "cannot hold its own header"),
        (struct.pack("<Q", 1 << 40), "cannot hold its own header"),
        (struct.pack("<Q", 0), "cannot hold its own header"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "Git LFS pointer"),
        (safetensors(b"\xff{not json", b""), "damaged safetensors header"),
        (safetensors([], b""), "damaged safetensors header"),
        (safetensors(b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{}}', b""), "a name occurs twice"),
        (safetensors({"a": {**ENTRY, "dtype": "Q7"}}, bytes(24)), "damaged safetensors header"),
        (safetensors({"a": {**ENTRY, "shape": [2, 4]}}, bytes(24)), "24 bytes do not fit shape [2, 4]"),
        (safetensors({"a": {**ENTRY, "shape": [-2, -3]}}, bytes(24)), "do not fit shape"),
        (safetensors({"a": {**ENTRY, "data_offsets": [8, 32]}}, bytes(32)), "a starts at byte"),
        (safetensors({"a": ENTRY}, bytes(23)), "is truncated"),
        (safetensors({"a": ENTRY}, bytes(25)), "1 bytes after its last tensor"),
    ],
)
def test_damage_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "model-00002-of-00003.safetensors"
    file.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_header(file)
    assert says in str(caught.value)
    assert file.name in str(caught.value)


def test_the_tensor_that_was_cut_off_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    second = {**ENTRY, "data_offsets": [24, 48]}
    file.write_bytes(safetensors({"whole": ENTRY, "broken": second}, bytes(40)))
    with pytest.raises(CheckpointError, match="first tensor cut off is broken"):
        read_header(file)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"gone\.safetensors cannot be read"):
        read_header(tmp_path / "gone.safetensors")
