"""The record file: one JSON line for the run, one for each system, one for each answer, each on disk when it is made.

A process that is killed at any moment leaves whole lines and at most one torn line at the end; the torn line is cut off
when the run is resumed, and its question asked again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qwen_export.errors import InputError, UsageError

FILE_NAME = "records.jsonl"
RUN, SYSTEM, ANSWER = "run", "system", "answer"

Record = dict[str, Any]


@dataclass
class Records:
    """Everything a record file says."""

    run: Record
    """Protocol and data set."""
    systems: dict[str, Record] = field(default_factory=dict)
    """Name -> facts."""
    answers: dict[tuple[str, int], Record] = field(default_factory=dict)
    """(system, index) -> answer."""

    def of(self, system: str) -> dict[int, Record]:
        """Answers of one system by index, in rising order."""
        return {index: record for (name, index), record in sorted(self.answers.items()) if name == system}


def read_records(path: Path) -> Records:
    """Read a record file; a torn last line is left out.

    Raises:
        UsageError: there is no such file.
        InputError: a line that is not the last is damaged, or an answer stands there twice.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"There are no records at {path}. Give the folder of an evaluation.") from None
    records: Records | None = None
    for number, line in enumerate(_whole_lines(data), 1):
        try:
            record = json.loads(line)
            kind = record.pop("kind")
        except (ValueError, KeyError, AttributeError):
            raise InputError(f"{path}: line {number} is damaged. Restore the file, or evaluate again.") from None
        if records is None:
            if kind != RUN:
                raise InputError(f"{path}: the first line is not that of an evaluation.")
            records = Records(record)
        elif kind == SYSTEM:
            records.systems[record["name"]] = record
        elif kind == ANSWER:
            key = record["system"], record["index"]
            if key in records.answers:
                raise InputError(f"{path}: line {number} answers question {key[1]} a second time for {key[0]}.")
            records.answers[key] = record
    if records is None:
        raise InputError(f"{path} holds no whole line. Delete it and evaluate again.")
    return records


def _whole_lines(data: bytes) -> list[bytes]:
    return data[: data.rfind(b"\n") + 1].splitlines()


class RecordFile:
    """Appends records; use it as a context manager."""

    def __init__(self, path: Path, run: Record, *, resume: bool) -> None:
        """Begin a file, or go on with one of the same run.

        Raises:
            UsageError: records are there and `resume` is not asked for, or they are of another protocol or data set.
        """
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        begun = path.is_file() and b"\n" in path.read_bytes()
        if begun and not resume:
            raise UsageError(f"{path.parent} already holds an evaluation. Add --resume, or choose another --output.")
        if begun:
            self.records = read_records(path)
            check_same(self.records.run, run, f"{path} is of another evaluation")
        else:
            self.records = Records(run)
        self._file = path.open("r+b" if begun else "wb")
        if begun:
            data = self._file.read()
            self._file.truncate(data.rfind(b"\n") + 1)
            self._file.seek(0, os.SEEK_END)
        else:
            self._write(RUN, run)

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add_system(self, facts: Record) -> None:
        """Name a system that will answer, or check that it is the one that did."""
        known = self.records.systems.get(facts["name"])
        if known is not None:
            check_same(known, facts, f"{self.path}: {facts['name']} was another system")
            return
        self.records.systems[facts["name"]] = self._write(SYSTEM, facts)

    def add_answer(self, record: Record) -> None:
        """Persist one answer; it is on disk when this returns."""
        self.records.answers[record["system"], record["index"]] = self._write(ANSWER, record)

    def _write(self, kind: str, record: Record) -> Record:
        """Persist one line; the record as a reader of the file will see it."""
        line = json.dumps({"kind": kind, **record}, ensure_ascii=False, allow_nan=False)
        # One write call, so that a kill can tear the line but never leave a later one in front of it.
        self._file.write((line + "\n").encode("utf-8", errors="surrogatepass"))
        self._file.flush()
        os.fsync(self._file.fileno())
        seen: Record = json.loads(line)
        del seen["kind"]
        return seen


def check_same(known: Mapping[str, Any], given: Mapping[str, Any], what: str) -> None:
    """Refuse to mix runs whose facts differ; the message names the first difference."""
    for name in sorted({*known, *given}):
        before, now = known.get(name), json.loads(json.dumps(given.get(name)))
        if before != now:
            raise UsageError(f"{what}: {name} was {before!r}, now it is {now!r}. Choose another --output.")
