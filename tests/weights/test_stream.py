"""Streaming: right bytes, right hashes, little memory, and a name in every error."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from qwen_export.bindings import Binding, Bindings, Part, linear, vector
from qwen_export.errors import CheckpointError
from qwen_export.weights import DataFile, evaluate, mapped_file, plan_layout, stream, tensor_sha256
from qwen_export.weights.stream import BLOCK_BYTES
from tests.weights.small_checkpoint import SmallCheckpoint, bf16, small_checkpoint

STREAM_MODULE = sys.modules["qwen_export.weights.stream"]


def bindings() -> Bindings:
    return {
        "up": linear("up", 700, 300, "float16"),
        "norm": vector("norm", 300, "float32", "one_plus"),
        "embed": Binding((Part("embed"),), "float16", (2000, 300)),
        "packed": Binding((Part("up", (7, 2, 1)), Part("k"), Part(count=3)), "float16", (300, 393), transpose=True),
        "head": linear("embed", 2000, 300, "float16"),
    }


@pytest.fixture
def checkpoint(tmp_path: Path) -> SmallCheckpoint:
    shapes = {"up": (700, 300), "norm": (300,), "embed": (2000, 300), "k": (40, 300)}
    arrays = {key: bf16(shape, seed) for seed, (key, shape) in enumerate(shapes.items())}
    return small_checkpoint(tmp_path / "model.safetensors", arrays)


def write(checkpoint: SmallCheckpoint, file: Path, weights: Bindings, **options):
    return stream([DataFile(file, weights, plan_layout(weights))], checkpoint, **options)


@pytest.mark.parametrize(("workers", "block_bytes"), [(1, BLOCK_BYTES), (2, 7000), (3, 100_000), (2, 1)])
def test_bytes_and_hashes(
    checkpoint: SmallCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, block_bytes: int
) -> None:
    monkeypatch.setattr(STREAM_MODULE, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(STREAM_MODULE, "HASH_PIECE", 1 << 12)
    weights = bindings()
    layout = plan_layout(weights)
    file = tmp_path / "model.onnx.data"
    streamed = write(checkpoint, file, weights, workers=workers)
    expected = bytearray(layout.size)
    for name, binding in weights.items():
        slot = layout.slots[name]
        expected[slot.offset : slot.end] = evaluate(binding, checkpoint.arrays.__getitem__).tobytes()
    assert file.read_bytes() == bytes(expected)
    assert streamed.file_sha256 == {file: hashlib.sha256(expected).hexdigest()}
    assert streamed.tensor_sha256 == {
        key: hashlib.sha256(array.tobytes()).hexdigest() for key, array in checkpoint.arrays.items()
    }
    assert streamed.tensor_sha256["up"] == tensor_sha256(checkpoint.tensors["up"])


def test_several_files_and_progress(checkpoint: SmallCheckpoint, tmp_path: Path) -> None:
    calls: list[tuple[int, int, str]] = []

    class Listener:
        def stage(self, name: str) -> None: ...
        def count_bytes(self, done: int, total: int, item: str) -> None:
            calls.append((done, total, item))

    weights = bindings()
    first, second = dict(list(weights.items())[:3]), dict(list(weights.items())[3:])
    files = [DataFile(tmp_path / f"{n}.data", part, plan_layout(part)) for n, part in enumerate((first, second))]
    stream(files, checkpoint, progress=Listener())
    total = sum(slot.num_bytes for file in files for slot in file.layout.slots.values())
    assert {call[1] for call in calls} == {total}
    assert [call[0] for call in calls] == sorted(call[0] for call in calls)
    assert calls[-1] == (total, total, "embed")
    assert all(file.path.stat().st_size == file.layout.size for file in files)


def with_value(checkpoint: SmallCheckpoint, tmp_path: Path, key: str, value: float) -> SmallCheckpoint:
    arrays = {name: array.copy() for name, array in checkpoint.arrays.items()}
    arrays[key].reshape(-1)[-1] = value
    return small_checkpoint(tmp_path / "changed.safetensors", arrays)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("key", ["up", "norm", "embed"])
def test_nan_and_infinity_are_reported_by_name(
    checkpoint: SmallCheckpoint, tmp_path: Path, key: str, value: float
) -> None:
    changed = with_value(checkpoint, tmp_path, key, value)
    with pytest.raises(CheckpointError, match=rf"^{key} in .*changed\.safetensors holds NaN or infinity"):
        write(changed, tmp_path / "out.data", bindings())


def test_a_weight_beyond_half_precision_is_reported_by_name(checkpoint: SmallCheckpoint, tmp_path: Path) -> None:
    changed = with_value(checkpoint, tmp_path, "k", -70144.0)
    with pytest.raises(CheckpointError, match=r"^k in .* up to 70144; the weight packed .*float16.*--dtype bf16"):
        write(changed, tmp_path / "out.data", bindings())
    streamed = write(changed, tmp_path / "allowed.data", bindings(), allow_not_finite=True)
    assert len(streamed.not_finite) == 1
    wide = {name: Binding(b.parts, "bfloat16", b.shape, b.transform, b.transpose) for name, b in bindings().items()}
    assert write(changed, tmp_path / "bf16.data", wide).not_finite == ()


def test_a_shard_that_is_cut_short_names_tensor_and_file(checkpoint: SmallCheckpoint, tmp_path: Path) -> None:
    info = checkpoint.tensors["k"]
    os.truncate(info.file, info.stop - 1)
    with pytest.raises(CheckpointError, match=r"model\.safetensors ends inside tensor raw\.k"):
        write(checkpoint, tmp_path / "out.data", bindings())


def test_a_shard_that_vanished_names_tensor_and_file(checkpoint: SmallCheckpoint, tmp_path: Path) -> None:
    checkpoint.tensors["up"].file.unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read at tensor raw\.up: No such file"):
        write(checkpoint, tmp_path / "out.data", bindings())


def test_a_shard_that_changes_while_it_is_read_is_noticed(checkpoint: SmallCheckpoint, tmp_path: Path) -> None:
    file = checkpoint.tensors["up"].file

    class Meddler:
        def stage(self, name: str) -> None: ...
        def count_bytes(self, done: int, total: int, item: str) -> None:
            os.utime(file, ns=(1, 1))

    with pytest.raises(CheckpointError, match=r"model\.safetensors changed while it was read"):
        write(checkpoint, tmp_path / "out.data", bindings(), progress=Meddler())


def test_an_interrupt_ends_the_workers(checkpoint: SmallCheckpoint, tmp_path: Path) -> None:
    class Impatient:
        def stage(self, name: str) -> None: ...
        def count_bytes(self, done: int, total: int, item: str) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(checkpoint, tmp_path / "out.data", bindings(), progress=Impatient())
    (tmp_path / "out.data").unlink()
    write(checkpoint, tmp_path / "out.data", bindings())


def test_a_full_disk_is_an_error_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(OSError, match="No space left"), mapped_file.MappedFile(tmp_path / "x", 4096):
        pass


def test_space_is_taken_where_the_system_has_no_call_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    with mapped_file.MappedFile(tmp_path / "x", 5_000_001) as file:
        file.bytes[-1] = 7
    content = (tmp_path / "x").read_bytes()
    assert len(content) == 5_000_001
    assert content[-1] == 7
    assert not any(content[:-1])


MEASURE = """
    import threading, time
    from pathlib import Path
    import numpy as np
    from small_checkpoint import small_checkpoint, bf16
    from qwen_export.bindings import linear
    from qwen_export.weights import DataFile, plan_layout, stream

    def anonymous() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

    folder = Path({folder!r})
    rows, columns = 40_000, 2_000
    part = bf16((rows // 10, columns), 0)
    checkpoint = small_checkpoint(folder / "model.safetensors", {{f"w{{i}}": part for i in range(10)}})
    info = checkpoint.tensors["w0"]
    whole = info.__class__("w", "w", info.file, info.dtype, (rows, columns), info.start, info.start + part.nbytes * 10)
    checkpoint = checkpoint.__class__({{"w": whole}}, {{}})
    weights = {{"w": linear("w", rows, columns, "float16")}}
    small = {{"w": linear("w", 4, columns, "float16")}}
    tiny = info.__class__("w", "w", info.file, info.dtype, (4, columns), info.start, info.start + 4 * columns * 2)
    stream([DataFile(folder / "warm", small, plan_layout(small))], checkpoint.__class__({{"w": tiny}}, {{}}))
    before, peak, done = anonymous(), 0, False

    def watch() -> None:
        global peak
        while not done:
            peak = max(peak, anonymous())
            time.sleep(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    stream([DataFile(folder / "out", weights, plan_layout(weights))], checkpoint, workers=2)
    done = True
    thread.join()
    print(peak - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="RssAnon is read from /proc")
def test_memory_does_not_grow_with_the_tensor(tmp_path: Path) -> None:
    script = textwrap.dedent(MEASURE).format(folder=str(tmp_path))
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), *sys.path))},
    )
    tensor, blocks = 40_000 * 2_000 * 2, 2 * BLOCK_BYTES
    assert int(run.stdout) < blocks + (16 << 20) < tensor
