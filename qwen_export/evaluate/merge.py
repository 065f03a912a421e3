"""Put the records of several shards together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qwen_export.errors import UsageError
from qwen_export.evaluate.records import FILE_NAME, Records, check_same

_TIMES = ("seconds", "margins")
"""Differ between machines without being another answer."""


def merge_records(shards: Sequence[tuple[Path, Records]]) -> Records:
    """One set of records.

    Raises:
        UsageError: the shards are of different protocols, data sets or systems, or two of them answer one question
            differently.
    """
    if not shards:
        raise UsageError("There is nothing to rescore: give the folder of an evaluation.")
    merged = Records(shards[0][1].run)
    for folder, shard in shards:
        check_same(merged.run, shard.run, f"{folder / FILE_NAME} is of another evaluation than {shards[0][0]}")
        for name, facts in shard.systems.items():
            check_same(merged.systems.setdefault(name, facts), facts, f"{folder}: {name} is another system there")
        for key, record in shard.answers.items():
            known = merged.answers.setdefault(key, record)
            if {k: v for k, v in known.items() if k not in _TIMES} != {
                k: v for k, v in record.items() if k not in _TIMES
            }:
                raise UsageError(
                    f"{folder}: question {key[1]} was answered differently by {key[0]} in another shard. "
                    "Shards of one run do not overlap; rescore them apart."
                )
    return merged
