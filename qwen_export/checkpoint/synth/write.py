"""Write a synthetic checkpoint: streamed block by block into a sibling folder, renamed when whole."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from qwen_export.checkpoint.inventory import Shapes
from qwen_export.checkpoint.synth.assets import write_assets, write_json
from qwen_export.checkpoint.synth.plan import num_bytes, shards, tensor_shapes
from qwen_export.checkpoint.synth.weights import SyntheticWeights, num_blocks
from qwen_export.errors import UsageError
from qwen_export.model_config import parse_config

Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all, current tensor."""

_ROOM_FOR_SMALL_FILES = 32 << 20


def synthesise(
    output: Path,
    config: dict[str, Any],
    *,
    seed: int = 0,
    max_shard_bytes: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a checkpoint with random, lively weights in the official layout for the content of a `config.json`.

    The bytes of a tensor depend on `seed` and its name alone. `output` must not exist or be an empty folder; it
    appears whole or not at all.
    """
    output = Path(output).absolute()
    facts = parse_config(config)
    shapes = tensor_shapes(facts)
    partial = output.parent / f".{output.name}.partial-{os.getpid()}"
    try:
        _check_output(output, sum(map(num_bytes, shapes.values())))
        partial.mkdir(parents=True)
        _write_weights(partial, shapes, SyntheticWeights(facts, seed), max_shard_bytes, progress)
        write_assets(partial, facts)
        if output.exists():
            output.rmdir()
        partial.rename(output)
    except OSError as error:
        raise UsageError(
            f"The checkpoint cannot be written to {output}: {error.strerror or error}. Nothing half-written remains."
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_output(output: Path, size: int) -> None:
    """Ask whether the output may be there and has room."""
    if output.is_symlink() or (output.exists() and not (output.is_dir() and not any(output.iterdir()))):
        raise UsageError(f"{output} exists already. Choose another place, or remove it first.")
    there = output.parent
    while not there.exists():
        there = there.parent
    needed = size + _ROOM_FOR_SMALL_FILES
    free = shutil.disk_usage(there).free
    if free < needed:
        raise UsageError(
            f"The checkpoint needs {needed / 1e9:.2f} GB but {there} has {free / 1e9:.2f} GB free. "
            "Choose another place or a smaller config."
        )


def _write_weights(
    folder: Path, shapes: Shapes, weights: SyntheticWeights, max_shard_bytes: int | None, progress: Progress | None
) -> None:
    total = sum(map(num_bytes, shapes.values()))
    groups = shards(shapes, max_shard_bytes)
    done = 0
    places: dict[str, str] = {}
    for number, keys in enumerate(groups, 1):
        name = f"model-{number:05}-of-{len(groups):05}.safetensors"
        with (folder / name).open("wb") as file:
            file.write(_header({key: shapes[key] for key in keys}))
            for key, values in _generated(shapes, keys, weights):
                file.write(values.data)
                done += values.nbytes
                if progress is not None:
                    progress(done, total, key)
        places |= dict.fromkeys(keys, name)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    write_json(folder / "model.safetensors.index.json", index)


def _header(shapes: Shapes) -> bytes:
    """A safetensors header: its length, then JSON padded to eight bytes."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for key, shape in shapes.items():
        stop = start + num_bytes(shape)
        entries[key] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _generated(shapes: Shapes, keys: list[str], weights: SyntheticWeights) -> Iterator[tuple[str, np.ndarray]]:
    """Blocks in order, drawn by a few threads that stay at most two blocks each ahead of the writer."""
    workers = min(os.cpu_count() or 1, 16)
    wanted = ((key, index) for key in keys for index in range(num_blocks(shapes[key])))
    waiting: deque[tuple[str, Future[np.ndarray]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for key, index in wanted:
                waiting.append((key, pool.submit(weights.block, key, shapes[key], index)))
                if len(waiting) > 2 * workers:
                    name, future = waiting.popleft()
                    yield name, future.result()
            while waiting:
                name, future = waiting.popleft()
                yield name, future.result()
        finally:
            for _, future in waiting:
                future.cancel()
