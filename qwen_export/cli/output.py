"""Where the command line writes: results to stdout, everything else to stderr.

With `--json` stdout carries exactly one JSON document. Terminals and pipes that cannot show a character get a
replacement, and a reader that closed the pipe (`| head`) changes neither the work nor the exit code.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import IO, Any

from rich.console import Console, RenderableType
from rich.text import Text


def prepare_streams() -> None:
    """Make stdout and stderr take any character, whatever the locale is."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


class PatientConsole(Console):
    """A console that goes quiet when its reader is gone; rich's own would end the program with code 1."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        close_pipe(self.file)


def notices() -> Console:
    """Console for everything that is not the result."""
    return PatientConsole(file=sys.stderr, highlight=False, soft_wrap=True)


def show(renderable: RenderableType) -> None:
    """Print a part of the result for people."""
    lines = isinstance(renderable, (str, Text))  # a sentence is not cut at column 80 of a pipe; a table is laid out
    PatientConsole(file=sys.stdout, highlight=False).print(renderable, soft_wrap=lines)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        close_pipe(sys.stdout)


def show_json(document: Any, stream: IO[str] | None = None) -> None:
    """Print the one JSON document of a `--json` call."""
    out = stream or sys.stdout
    try:
        out.write(json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        out.flush()
    except BrokenPipeError:
        close_pipe(out)


def close_pipe(stream: IO[str]) -> None:
    """Point a stream whose reader is gone to nowhere, so that later writes and the flush at exit stay silent."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    except (OSError, ValueError):  # not backed by a file descriptor: nothing will be flushed into the pipe
        pass
    finally:
        os.close(nowhere)


def plain(value: Any) -> Any:
    """A value as JSON knows it. NaN and infinity, which JSON lacks, become the strings "nan", "inf" and "-inf"."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(value.to_dict() if hasattr(value, "to_dict") else asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in (sorted(value) if isinstance(value, (set, frozenset)) else value)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):  # a NumPy scalar
        return plain(value.item())
    raise TypeError(f"{type(value).__name__} has no JSON form")


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """Text from a model or a file with control characters made harmless, so that it cannot steer the terminal."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def size(num_bytes: float) -> str:
    """Bytes for people, in the decimal units that disks and checkpoints are quoted in."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num_bytes) < 1000 or unit == "GB":
            return f"{num_bytes:,.0f} {unit}" if unit == "B" else f"{num_bytes:,.2f} {unit}"
        num_bytes /= 1000
    raise AssertionError("unreachable")
