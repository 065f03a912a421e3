"""The command list. Nothing heavy is imported here: `--help` must answer at once."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from qwen_export import __version__
from qwen_export.cli import (
    checkpoint_commands,
    evaluate_command,
    export_commands,
    genai_commands,
    package_commands,
    runtime_commands,
    verify_commands,
)
from qwen_export.cli.examples import epilog
from qwen_export.cli.outcome import Outcome, command
from qwen_export.cli.output import close_pipe, prepare_streams

COMMANDS: dict[str, tuple[str, Callable[..., Outcome]]] = {
    "vlm": ("Export", export_commands.vlm),
    "text": ("Export", export_commands.text),
    "vision-encoder": ("Export", export_commands.vision_encoder),
    "embedding": ("Export", export_commands.embedding),
    "decoder": ("Export", export_commands.decoder),
    "bind": ("Export", export_commands.bind),
    "genai": ("Export", genai_commands.genai),
    "run": ("Run", runtime_commands.run),
    "evaluate": ("Run", evaluate_command.evaluate),
    "verify": ("Look and judge", verify_commands.verify),
    "audit": ("Look and judge", package_commands.audit),
    "genai-check": ("Look and judge", genai_commands.genai_check),
    "inspect": ("Look and judge", package_commands.inspect),
    "diff": ("Look and judge", package_commands.diff),
    "baseline": ("Look and judge", package_commands.baseline),
    "synth": ("Checkpoints", checkpoint_commands.synth),
}
"""Command name -> help panel, body."""

app = typer.Typer(
    name="qwen-export",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Export dense Qwen3.5/3.6/3.8 vision-language checkpoints to ONNX in standard operators only.",
    epilog="Every command's --help ends with examples to paste.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"qwen-export {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", metavar="", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


for _name, (_panel, _body) in COMMANDS.items():
    app.command(_name, epilog=epilog(_name), rich_help_panel=_panel)(command(_body))


def run() -> None:
    """Answer one command line and leave with its exit code."""
    prepare_streams()
    try:
        app()
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            close_pipe(sys.stdout)
        # the process ends here: looking for garbage among torch's objects once more would take over a second
        gc.freeze()
