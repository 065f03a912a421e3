"""Progress: plain lines in a pipe, a bar on a terminal, nothing on stdout."""

from __future__ import annotations

import io
import itertools
import sys

import pytest

from qwen_export.cli.progress import ProgressDisplay


class Terminal(io.StringIO):
    """stderr of somebody who looks at it."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def one_second_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr("qwen_export.cli.progress.time.monotonic", lambda: float(next(seconds)))


def test_a_pipe_gets_a_line_now_and_then(one_second_a_call: None, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay() as progress:
        progress.stage("weights")
        for done in range(13):
            progress.count_bytes(done * 1_000_000, 12_000_000, f"model.layers.{done}.[w]")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "weights",
        "weights: 5.00 MB of 12.00 MB, 1.00 MB/s, model.layers.5.[w]",
        "weights: 10.00 MB of 12.00 MB, 1.00 MB/s, model.layers.10.[w]",
    ]


def test_a_terminal_gets_a_bar_with_rate_and_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with ProgressDisplay() as progress:
        progress.stage("weights")
        progress.count_bytes(5_000_000, 10_000_000, "model.layers.5.[w]")
        progress._bar.refresh()
        progress.stage("audit")
    shown = terminal.getvalue()
    assert "5.0/10.0 MB" in shown
    assert "model.layers.5.[w]" in shown
    assert "audit" in shown


def test_a_dumb_terminal_is_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "dumb")
    with ProgressDisplay() as progress:
        progress.stage("weights")
        progress.count_bytes(1, 2, "x")
    assert terminal.getvalue() == "weights\n"
