"""Commands that compute with a package: run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qwen_export.cli import options as opt
from qwen_export.cli.outcome import FINE, Outcome
from qwen_export.cli.output import close_pipe, notices, size, visible
from qwen_export.errors import QwenExportError, UsageError

if TYPE_CHECKING:
    from qwen_export.runtime.chat import Answer, Chat


def run(
    package: opt.Package,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="What to ask.")] = None,
    image: Annotated[
        list[Path] | None, typer.Option("--image", metavar="FILE", help="A picture; may be given several times.")
    ] = None,
    video: Annotated[
        Path | None, typer.Option("--video", metavar="FILE|DIR", help="A video, or a folder of frames.")
    ] = None,
    fps: Annotated[float | None, typer.Option("--fps", help="Frames per second to sample from the video.")] = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System message.")] = None,
    thinking: Annotated[
        bool, typer.Option("--thinking/--no-thinking", metavar="", help="Let the model think aloud first.")
    ] = False,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", metavar="N", help="Limit of the answer.")] = 512,
    provider: opt.ProviderOption = opt.Provider.cpu,
    device: Annotated[int, typer.Option("--device", metavar="N", help="Number of the CUDA device.")] = 0,
    threads: opt.Threads = None,
    temperature: Annotated[float, typer.Option("--temperature", help="0: the likeliest token.")] = 0.0,
    top_k: Annotated[int, typer.Option("--top-k", metavar="N", help="Sample from the N likeliest; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option("--top-p", help="Sample from the likeliest with this mass.")] = 1.0,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the sampling.")] = None,
    max_pixels: Annotated[
        int | None, typer.Option("--max-pixels", metavar="N", help="Shrink larger pictures; default the checkpoint's.")
    ] = None,
    min_pixels: Annotated[
        int | None, typer.Option("--min-pixels", metavar="N", help="Enlarge smaller pictures; default likewise.")
    ] = None,
    prefill_slice: Annotated[
        int | None, typer.Option("--prefill-slice", metavar="N", help="Prompt tokens fed at a time.")
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", metavar="", help="Go on with the conversation, turn by turn.")
    ] = False,
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
) -> Outcome:
    """Ask a package about text, pictures or a video."""
    if interactive and as_json:
        raise UsageError("--interactive writes for people; leave --json out.")
    if prompt is None and not interactive:
        raise UsageError("There is nothing to ask: add --prompt TEXT, or --interactive.")
    from qwen_export.runtime.run import open_chat

    chat = open_chat(
        package, system=system, thinking=thinking, provider=str(provider), device_index=device, threads=threads,
        temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, max_pixels=max_pixels, min_pixels=min_pixels,
        prefill_slice=prefill_slice,
    )  # fmt: skip
    media: dict[str, Any] = {"images": image or [], "video": video, "fps": fps}
    if prompt is not None:
        answer = _turn(chat, prompt, max_new_tokens, media, quiet=as_json)
        if not interactive:
            return Outcome(_document(answer))
        media = {}
    _converse(chat, max_new_tokens, media)
    return Outcome(None)


def _turn(chat: Chat, prompt: str, limit: int, media: dict[str, Any], *, quiet: bool = False) -> Answer:
    """Ask, stream the answer to stdout, and put the figures on stderr."""
    console = notices()
    answer = chat.ask(
        prompt,
        max_new_tokens=limit,
        on_text=None if quiet else _stream,
        on_note=lambda note: console.print(visible(note), markup=False, style="dim"),
        **media,
    )
    if not quiet:
        _stream("\n")
    console.print(_figures(answer), markup=False, style="dim")
    return answer


def _converse(chat: Chat, limit: int, media: dict[str, Any]) -> None:
    """Take turns from stdin until it ends. `/image FILE` adds a picture to the next turn."""
    console = notices()
    console.print("Type a message; /image FILE adds a picture to it, /quit ends.", style="dim", markup=False)
    media = {"images": [], **media}
    while True:
        console.print("> ", end="", markup=False)
        line = sys.stdin.readline()
        if not line or line.strip() == "/quit":
            return
        words = line.strip()
        if words.startswith("/image "):
            media["images"] = [*media["images"], Path(words.removeprefix("/image ").strip())]
            continue
        if not words:
            continue
        try:
            _turn(chat, words, limit, media)
        except QwenExportError as error:  # the conversation stands as it was before this turn
            console.print(f"error: {visible(str(error))}", markup=False, style="bold red")
        media = {"images": []}


def _stream(piece: str) -> None:
    """Print a piece of the answer at once; a reader who left ends the program."""
    try:
        sys.stdout.write(visible(piece))
        sys.stdout.flush()
    except BrokenPipeError:
        close_pipe(sys.stdout)
        raise typer.Exit(FINE) from None


def _figures(answer: Answer) -> str:
    figures = answer.statistics
    end = "" if answer.ended else ", cut off by the limit"
    return (
        f"{figures.prompt_tokens} prompt tokens, {figures.new_tokens} new tokens{end}; first after "
        f"{figures.time_to_first_token:.2f} s, then {figures.tokens_per_second:.1f} tokens/s; "
        f"{size(figures.resident_memory)} of memory, {size(figures.state_bytes)} of it states"
    )


def _document(answer: Answer) -> dict[str, Any]:
    figures = answer.statistics
    return {
        "text": answer.text,
        "tokens": answer.tokens,
        "ended": answer.ended,
        "notes": answer.notes,
        "prompt_tokens": figures.prompt_tokens,
        "new_tokens": figures.new_tokens,
        "seconds_to_first_token": figures.time_to_first_token,
        "tokens_per_second": figures.tokens_per_second,
        "resident_bytes": figures.resident_memory,
        "state_bytes": figures.state_bytes,
    }
