"""Progress on stderr: a live bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from qwen_export.cli.output import notices, size

LINE_EVERY = 5.0
"""Seconds between plain lines of one stage."""


class ProgressDisplay:
    """Shows what the work is at: `stage` names a step, `count_bytes` moves the bar of the running step."""

    def __init__(self) -> None:
        self._console = notices()
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._bar = Progress(
            BarColumn(bar_width=24),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", style="dim", markup=False),
            console=self._console,
            transient=True,
            disable=not self._live,
        )
        self._stage = ""
        self._task: TaskID | None = None
        self._total = 0
        self._started = self._printed = 0.0

    def __enter__(self) -> ProgressDisplay:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def stage(self, name: str) -> None:
        """Begin a step, for instance `decoder: tracing`."""
        self._stage, self._total = name, 0
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
        self._console.print(name, markup=False, style="dim")

    def count_bytes(self, done: int, total: int, item: str) -> None:
        """Say how many bytes are done, and which tensor or file is at hand. May be called thousands of times."""
        now = time.monotonic()
        if total != self._total:
            self._total, self._started, self._printed = total, now, now
            if self._live and self._task is None:
                self._task = self._bar.add_task("", total=total)
        if self._task is not None:
            self._bar.update(self._task, completed=done, total=total, description=item)
        elif now - self._printed >= LINE_EVERY:
            self._printed = now
            rate = size(done / max(now - self._started, 1e-9))
            line = f"{self._stage}: {size(done)} of {size(total)}, {rate}/s, {item}"
            self._console.print(line, markup=False, style="dim")
