"""Stream checkpoint tensors into external data files: read, cast, transpose, write and hash, block by block.

Worker threads share one queue of jobs: for every checkpoint tensor one job that hashes its bytes (as they lie in the
file), followed by the jobs that write the weights made of it, 32 MiB of source rows each; so the hash meets the bytes
while they are in the page cache. The calling thread follows in file order, reports progress and hashes what is written.
Memory: one block and two tiles per worker, whatever the size of the tensors.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from qwen_export.bindings import Binding, Bindings
from qwen_export.contract import FLOAT16
from qwen_export.errors import CheckpointError
from qwen_export.weights.evaluate import DTYPES, Matrix, Run, is_finite, matrix_of, write_rows
from qwen_export.weights.layout import Layout, Slot
from qwen_export.weights.mapped_file import MappedFile
from qwen_export.weights.source import HASH_PIECE, ShardReader, UnchangedFiles

if TYPE_CHECKING:
    from qwen_export.checkpoint import Snapshot

BLOCK_BYTES = 32 << 20
"""Source bytes a worker holds at a time."""
WRITTEN_HASH_PIECE = 1 << 24
MAX_WORKERS = 4


class Progress(Protocol):
    """What a caller may be told while work goes on."""

    def stage(self, name: str) -> None:
        """A step begins."""

    def count_bytes(self, done: int, total: int, item: str) -> None:
        """Bytes done in this step, and the tensor or file at hand."""


@dataclass(frozen=True)
class DataFile:
    """An external data file to write: where, of which bindings, laid out how."""

    path: Path
    bindings: Bindings
    layout: Layout


@dataclass(frozen=True)
class Streamed:
    """What was learned while writing.

    Attributes:
        file_sha256: data file -> SHA-256 of the written file.
        tensor_sha256: canonical checkpoint key -> SHA-256 of its bytes in the checkpoint.
        not_finite: one sentence per weight that holds NaN or infinity; empty unless that was allowed.
    """

    file_sha256: dict[Path, str] = field(default_factory=dict)
    tensor_sha256: dict[str, str] = field(default_factory=dict)
    not_finite: tuple[str, ...] = ()


def default_workers() -> int:
    """Worker threads: one per core, at most four (the disk and the hash are the limit then)."""
    return max(1, min(MAX_WORKERS, os.cpu_count() or 1))


def working_memory(files: Sequence[DataFile], workers: int | None = None) -> int:
    """Estimate of the memory that `stream` holds, in bytes; mapped pages of the data files do not count."""
    return (workers or default_workers()) * (BLOCK_BYTES + (4 << 20)) if files else 0


def stream(
    files: Sequence[DataFile],
    snapshot: Snapshot,
    *,
    progress: Progress | None = None,
    workers: int | None = None,
    allow_not_finite: bool = False,
) -> Streamed:
    """Write data files from a checkpoint.

    Args:
        allow_not_finite: keep NaN and infinity (of the checkpoint, or from a cast that overflows) and report them.

    Raises:
        CheckpointError: a tensor cannot be read, changed meanwhile, or holds (or would be cast to) NaN or infinity.
        OSError: the files cannot be written; they are then incomplete.
    """
    keys = dict.fromkeys(key for file in files for binding in file.bindings.values() for key in binding.tensors)
    unchanged = UnchangedFiles({snapshot.tensors[key].file for key in keys})
    workers = workers or default_workers()
    total = sum(slot.num_bytes for file in files for slot in file.layout.slots.values())
    pool = ThreadPoolExecutor(workers, thread_name_prefix="weights")
    try:
        with contextlib.ExitStack() as stack:
            crew = _Crew(snapshot, workers, allow_not_finite, stack)
            targets = [stack.enter_context(MappedFile(file.path, file.layout.size)) for file in files]
            try:
                follow = _Follow(total, progress)
                waiting = [
                    (target, _submit(pool, crew, file, target)) for file, target in zip(files, targets, strict=True)
                ]
                for target, jobs in waiting:
                    follow.file(target, jobs)
                hashes = {key: future.result() for key, future in crew.hashes.items()}
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    unchanged.check()
    return Streamed(follow.sha256, hashes, tuple(crew.not_finite))


@dataclass(frozen=True)
class _Job:
    """A block on its way: its future, the bytes it adds, and up to where the file is final once it is done."""

    future: Future[None]
    item: str
    num_bytes: int
    final_until: int | None


class _Crew:
    """What the workers share: idle readers with their buffers, and the hash jobs handed out so far."""

    def __init__(self, snapshot: Snapshot, workers: int, allow_not_finite: bool, stack: contextlib.ExitStack) -> None:
        self.snapshot = snapshot
        self.allow_not_finite = allow_not_finite
        self.hashes: dict[str, Future[str]] = {}
        self.not_finite: dict[str, None] = {}
        self._idle: queue.SimpleQueue[tuple[ShardReader, np.ndarray]] = queue.SimpleQueue()
        for _ in range(workers):
            self._idle.put((stack.enter_context(ShardReader()), np.empty(BLOCK_BYTES, np.uint8)))

    @contextlib.contextmanager
    def reader(self) -> Iterator[tuple[ShardReader, np.ndarray]]:
        """A reader and its buffer for one job."""
        pair = self._idle.get()
        try:
            yield pair
        finally:
            self._idle.put(pair)

    def hash_tensor(self, key: str) -> str:
        """Hash job: SHA-256 of one checkpoint tensor."""
        with self.reader() as (reader, buffer):
            return reader.sha256(self.snapshot.tensors[key], buffer[:HASH_PIECE])

    def write_block(self, name: str, matrix: Matrix, block: list[Run], target: MappedFile, slot: Slot) -> None:
        """Write job: one block of rows of one weight."""
        weight = target.bytes[slot.offset : slot.end].view(DTYPES[matrix.binding.dtype])
        with self.reader() as (reader, buffer), np.errstate(all="ignore"):
            for run in block:
                if run.part.tensor is None:
                    values = np.full((run.count, matrix.columns), run.part.fill, np.float32)
                else:
                    info = self.snapshot.tensors[run.part.tensor]
                    num_bytes = run.count * matrix.columns * DTYPES[info.dtype].itemsize
                    room = buffer if num_bytes <= buffer.size else np.empty(num_bytes, np.uint8)
                    values = reader.rows(info, run.source_row, run.count, matrix.columns, room)
                if not write_rows(weight, values, run, matrix):
                    self._report(name, values, run, matrix.binding)

    def _report(self, name: str, values: np.ndarray, run: Run, binding: Binding) -> None:
        key = run.part.tensor
        shard = self.snapshot.tensors[key].file if key else None
        # what is kept goes into the manifest, which names no folder
        where = f" in {shard.name if self.allow_not_finite else shard}" if shard else ""
        finite = all(is_finite(np.ascontiguousarray(row, np.float32), "float32") for row in np.array_split(values, 64))
        if finite:
            limit = " (65,504)" if binding.dtype == FLOAT16 else ""
            largest = max(float(np.abs(row.astype(np.float32)).max()) for row in values if row.size)
            sentence = (
                f"{key}{where} holds values up to {largest:g}; the weight {name} made of it exceeds the range of "
                f"{binding.dtype}{limit}. Export with --dtype bf16 or fp32."
            )
        else:
            sentence = f"{key}{where} holds NaN or infinity. The checkpoint is damaged; download or train it again."
        if not self.allow_not_finite:
            raise CheckpointError(sentence)
        self.not_finite[sentence] = None


def _submit(pool: ThreadPoolExecutor, crew: _Crew, file: DataFile, target: MappedFile) -> list[_Job]:
    """Queue everything one file needs, in the order of its bytes."""
    jobs: list[_Job] = []
    tensors = crew.snapshot.tensors
    for name, binding in file.bindings.items():
        slot = file.layout.slots[name]
        matrix = matrix_of(name, binding, {key: tuple(tensors[key].shape) for key in binding.tensors})
        for key in binding.tensors:
            if key not in crew.hashes:
                crew.hashes[key] = pool.submit(crew.hash_tensor, key)
        widest = max((DTYPES[tensors[key].dtype].itemsize for key in binding.tensors), default=4)
        max_rows = max(1, BLOCK_BYTES // max(1, matrix.columns * widest))
        item = binding.tensors[0] if binding.tensors else name
        row_bytes = slot.num_bytes // max(1, matrix.rows)
        for block in matrix.blocks(max_rows):
            end = block[-1].row + block[-1].count
            future = pool.submit(crew.write_block, name, matrix, block, target, slot)
            final = slot.end if end == matrix.rows else (None if binding.transpose else slot.offset + end * row_bytes)
            jobs.append(_Job(future, item, sum(run.count for run in block) * row_bytes, final))
    return jobs


class _Follow:
    """The calling thread's share: wait for the jobs in file order, report, hash what has become final."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.sha256: dict[Path, str] = {}
        self._total = total
        self._done = 0
        self._report: Callable[[int, int, str], None] = progress.count_bytes if progress else (lambda *_: None)

    def file(self, target: MappedFile, jobs: list[_Job]) -> None:
        """Follow one file to its end."""
        digest = hashlib.sha256()
        hashed = 0
        written = target.bytes.data
        for job in jobs:
            self._report(self._done, self._total, job.item)
            job.future.result()
            self._done += job.num_bytes
            while job.final_until is not None and hashed < job.final_until:
                piece = written[hashed : min(hashed + WRITTEN_HASH_PIECE, job.final_until)]
                digest.update(piece)
                hashed += len(piece)
            self._report(self._done, self._total, job.item)
        self.sha256[target.path] = digest.hexdigest()
