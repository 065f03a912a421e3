"""Ask a package one question: what `qwen-export run` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from qwen_export.package import Package, open_package
from qwen_export.runtime.chat import Answer, Chat
from qwen_export.runtime.images import ImageSource
from qwen_export.runtime.preprocess import PixelLimits
from qwen_export.runtime.sampling import Sampling
from qwen_export.runtime.session import Device
from qwen_export.runtime.video import VideoSource


def open_chat(
    package: Package | str | Path,
    *,
    system: str | None = None,
    thinking: bool = False,
    provider: str = "cpu",
    device_index: int = 0,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | None = None,
    max_pixels: int | None = None,
    min_pixels: int | None = None,
    prefill_slice: int | None = None,
    threads: int | None = None,
) -> Chat:
    """Open a package for a conversation; `Chat.ask` takes the turns (the `--interactive` form of `run`).

    Raises:
        QwenExportError: the package, the provider or a setting cannot be used; nothing has been computed.
    """
    sampling = Sampling(temperature, top_k, top_p, seed)
    opened = package if isinstance(package, Package) else open_package(Path(package))
    return Chat(
        opened,
        device=Device(provider, device_index),
        sampling=sampling,
        limits=PixelLimits(min_pixels, max_pixels),
        system=system,
        thinking=thinking,
        prefill_slice=prefill_slice,
        threads=threads,
    )


def run(
    package: Package | str | Path,
    *,
    prompt: str,
    images: Sequence[ImageSource] = (),
    video: VideoSource | None = None,
    fps: float | None = None,
    system: str | None = None,
    thinking: bool = False,
    max_new_tokens: int = 512,
    provider: str = "cpu",
    device_index: int = 0,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | None = None,
    max_pixels: int | None = None,
    min_pixels: int | None = None,
    prefill_slice: int | None = None,
    threads: int | None = None,
    on_text: Callable[[str], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Answer:
    """Answer one prompt about text, pictures or a video.

    Args:
        on_text: called with pieces of the answer as they are decoded.
        on_note: called with a sentence about what was sampled from a video.
    """
    chat = open_chat(
        package,
        system=system,
        thinking=thinking,
        provider=provider,
        device_index=device_index,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        max_pixels=max_pixels,
        min_pixels=min_pixels,
        prefill_slice=prefill_slice,
        threads=threads,
    )
    return chat.ask(
        prompt,
        images=images,
        video=video,
        fps=fps,
        max_new_tokens=max_new_tokens,
        on_text=on_text,
        on_note=on_note,
    )
