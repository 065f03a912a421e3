"""How a command ends: exit code, one sentence, and a saved report when the fault is ours.

0 fine; 1 a verdict failed; 2 usage or environment, nothing was judged; 3 a fault of ours; 130 interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import platform
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import typer
from rich.console import RenderableType

from qwen_export import __version__
from qwen_export.cli.output import notices, show, show_json, visible
from qwen_export.errors import InternalError, QwenExportError

FINE, VERDICT_FAILED, USAGE, OUR_FAULT, INTERRUPTED = 0, 1, 2, 3, 130

EXTRA_OF = {
    "torch": "export",
    "onnxscript": "export",
    "accelerate": "export",
    "onnxruntime": "cpu",
    "onnxruntime_genai": "genai",
    "av": "video",
    "pyarrow": "evaluate",
}
"""Top-level module of an optional library -> the extra that brings it."""

ENVIRONMENT = {
    errno.ENOSPC: "no space is left on the disk; free some, or choose another output folder",
    errno.EDQUOT: "the disk quota is used up; free some space, or choose another output folder",
    errno.EACCES: "access is denied; check its permissions",
    errno.EPERM: "the operation is not permitted; check its permissions",
    errno.EROFS: "the file system is read-only; choose another output folder",
    errno.EIO: "the disk reports an input/output error",
    errno.ENAMETOOLONG: "the path is too long; choose a shorter one",
    errno.EMFILE: "too many files are open; raise the limit of open files",
}
"""Failures of the machine rather than of the program."""


@dataclass(frozen=True)
class Outcome:
    """What a command came to."""

    document: Any
    """The result for `--json`: a dataclass or plain data."""
    rendered: Iterable[RenderableType] = ()
    """The result for people."""
    passed: bool = True
    """False when a verdict said no."""


def command(body: Callable[..., Outcome]) -> Callable[..., None]:
    """Run a command's body, print its outcome, and leave with the exit code that fits.

    With `--json` everything that is printed meanwhile, by any library, goes to stderr.
    """

    @functools.wraps(body)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        as_json, verbose = bool(kwargs.get("as_json")), bool(kwargs.get("verbose"))
        try:
            with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
                outcome = body(*args, **kwargs)
        except (typer.Exit, typer.BadParameter):
            raise
        except BaseException as error:
            code, message = explain(error, verbose)
            notices().print(message, markup=False, style="bold red" if code != INTERRUPTED else None)
            if as_json:
                show_json({"error": type(error).__name__, "message": message, "exit_code": code})
            raise typer.Exit(code) from None
        if as_json:
            show_json(outcome.document)
        else:
            for renderable in outcome.rendered:
                show(renderable)
        raise typer.Exit(FINE if outcome.passed else VERDICT_FAILED)

    return wrapper


def explain(error: BaseException, verbose: bool = False) -> tuple[int, str]:
    """Exit code and one sentence for anything a command can raise; a fault of ours leaves a report behind."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "interrupted"
    if isinstance(error, SystemExit):
        raise error
    if isinstance(error, QwenExportError) and not isinstance(error, InternalError):
        if verbose:
            traceback.print_exception(error)
        return error.exit_code, f"error: {_one_line(error)}"
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in EXTRA_OF:
        module = str(error.name).split(".")[0]
        return USAGE, f"error: this needs {module}. Install it: pip install 'qwen-export[{EXTRA_OF[module]}]'"
    if isinstance(error, MemoryError):
        return USAGE, "error: out of memory. Close other programs, or use a machine with more."
    if isinstance(error, OSError) and error.errno in ENVIRONMENT:
        where = f"{error.filename}: " if error.filename else ""
        return USAGE, f"error: {where}{ENVIRONMENT[error.errno]}."
    return OUR_FAULT, (
        f"error: this is a fault of qwen-export, not yours ({type(error).__name__}: {_one_line(error)}); "
        f"please report it with {_crash_report(error)}"
    )


def _one_line(error: BaseException) -> str:
    return visible(" ".join(str(error).split()))


def _crash_report(error: BaseException) -> str:
    """Save what a maintainer needs and name the file. Holds the command line, versions and traceback, no data."""
    lines = [f"qwen-export {__version__}", f"command: {sys.argv!r}", f"python: {sys.version}", platform.platform()]
    for name in ("torch", "transformers", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "onnxruntime-gpu", "numpy"):
        with contextlib.suppress(PackageNotFoundError):
            lines.append(f"{name}: {version(name)}")
    lines += ["", "".join(traceback.format_exception(error))]
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="qwen-export-crash-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.write("\n".join(lines))
        return str(Path(file.name))
    except OSError:  # the temporary folder is full or read-only: the report is still worth having
        print("\n".join(lines), file=sys.stderr)
        return "the report above"
