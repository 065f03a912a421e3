"""How commands end: exit codes, one sentence on stderr, one document on stdout."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest
import typer

from qwen_export.cli.outcome import ENVIRONMENT, Outcome, command, explain
from qwen_export.errors import (
    CheckpointError,
    InputError,
    InternalError,
    PackageError,
    UpstreamChanged,
    UsageError,
    VerdictFailed,
)


def leave(body, **kwargs) -> int:
    """Exit code of a command body."""
    with pytest.raises(typer.Exit) as caught:
        command(body)(**kwargs)
    return caught.value.exit_code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("no"), 2),
        (CheckpointError("no"), 2),
        (PackageError("no"), 2),
        (InputError("no"), 2),
        (UpstreamChanged("no"), 2),
        (VerdictFailed("no"), 1),
        (InternalError("no"), 3),
        (ValueError("no"), 3),
        (KeyboardInterrupt(), 130),
        (MemoryError(), 2),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 2),
        (ModuleNotFoundError("No module named 'torch.x'", name="torch.x"), 2),
        (ModuleNotFoundError("No module named 'qwen_export.x'", name="qwen_export.x"), 3),
        *[(OSError(number, "no"), 2) for number in ENVIRONMENT],
        (FileNotFoundError(errno.ENOENT, "gone"), 3),
    ],
)
def test_every_error_has_its_exit_code_and_one_line(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def body() -> Outcome:
        raise error

    assert leave(body) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert err.startswith("interrupted" if code == 130 else "error: ")


def test_a_fault_of_ours_saves_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    try:
        raise ZeroDivisionError("a thing\nof two lines")
    except ZeroDivisionError as error:
        code, message = explain(error)
    assert code == 3
    assert "\n" not in message
    (report,) = tmp_path.glob("qwen-export-crash-*.txt")
    assert str(report) in message
    text = report.read_text(encoding="utf-8")
    assert "ZeroDivisionError" in text
    assert "test_outcome.py" in text
    assert re.search(r"^qwen-export \d", text)


def test_a_report_that_cannot_be_saved_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", full)
    code, message = explain(RuntimeError("odd"))
    assert code == 3
    assert message.endswith("the report above")
    assert "RuntimeError: odd" in capsys.readouterr().err


def test_json_is_one_document_whatever_the_work_prints(capsys: pytest.CaptureFixture[str]) -> None:
    def body(as_json: bool) -> Outcome:
        print("chatter of a library")
        return Outcome({"value": float("nan"), "path": Path("a"), "items": ("x", 1)}, passed=False)

    assert leave(body, as_json=True) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {"value": "nan", "path": "a", "items": ["x", 1]}
    assert "chatter" in err


def test_json_of_an_error_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    def body(as_json: bool) -> Outcome:
        raise CheckpointError("model.bad is missing in shard 2.")

    assert leave(body, as_json=True) == 2
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "error": "CheckpointError",
        "message": "error: model.bad is missing in shard 2.",
        "exit_code": 2,
    }
    assert "model.bad" in err


def test_markup_in_a_message_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> Outcome:
        raise CheckpointError("tensor [bold]model.a[0][/red] in café.safetensors is bad.")

    assert leave(body) == 2
    assert "[bold]model.a[0][/red] in café.safetensors" in capsys.readouterr().err


def test_verbose_shows_the_traceback_of_a_users_error(capsys: pytest.CaptureFixture[str]) -> None:
    def body(verbose: bool) -> Outcome:
        raise UsageError("no")

    assert leave(body, verbose=True) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_broken_pipe_keeps_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        assert leave(lambda: Outcome({}, ["many lines"] * 1000, passed=False)) == 1
        monkeypatch.undo()
