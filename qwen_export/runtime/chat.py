"""A conversation with a package: each turn feeds only its new tokens to the carried states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from qwen_export.contract import VISION_ENCODER
from qwen_export.errors import InputError, UsageError
from qwen_export.package import Package
from qwen_export.runtime.engine import Engine
from qwen_export.runtime.generate import Generation, Statistics, check_request, generate
from qwen_export.runtime.images import ImageSource
from qwen_export.runtime.preprocess import ImagePreprocessor, Media, PixelLimits
from qwen_export.runtime.prompt import Prompt, PromptBuilder, TextStream, user_message
from qwen_export.runtime.sampling import Sampler, Sampling, end_tokens
from qwen_export.runtime.session import Device, check_runnable
from qwen_export.runtime.state import State
from qwen_export.runtime.video import VideoSource, prepare_video, read_settings


@dataclass(frozen=True)
class Answer:
    """One turn of the model."""

    text: str
    tokens: tuple[int, ...]
    """New tokens, the end token included if there was one."""
    ended: bool
    """False: the answer was cut off by the token limit."""
    notes: tuple[str, ...]
    """What was sampled from videos."""
    statistics: Statistics


class Chat:
    """Keeps a conversation and its states."""

    def __init__(
        self,
        package: Package,
        *,
        device: Device | None = None,
        sampling: Sampling | None = None,
        limits: PixelLimits | None = None,
        system: str | None = None,
        thinking: bool = False,
        prefill_slice: int | None = None,
        threads: int | None = None,
    ) -> None:
        check_runnable(package, device or Device())
        self._package = package
        self._builder = PromptBuilder(package.folder, package.config)
        self._engine = Engine(package, device, threads)
        self._sampler = Sampler(sampling or Sampling())
        self._ends = end_tokens(package.folder, package.config)
        self._limits, self._thinking, self._slice = limits, thinking, prefill_slice
        self._system = system
        self._images: ImagePreprocessor | None = None
        self._state: State | None = None
        self._unfed: tuple[int, ...] = ()
        """Tokens of the last answer that the states have not seen: its last one."""

    @property
    def state(self) -> State | None:
        """States after everything fed so far; None before the first turn."""
        return self._state

    def ask(
        self,
        text: str,
        *,
        images: Sequence[ImageSource] = (),
        video: VideoSource | None = None,
        fps: float | None = None,
        max_new_tokens: int = 512,
        on_text: Callable[[str], None] | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> Answer:
        """Take one turn: pictures, then a video, then text.

        A turn that fails leaves the conversation as it was. Only where a static KV cache has been written to by then,
        the conversation begins anew.

        Args:
            on_text: called with pieces of the answer as they are decoded.
            on_note: called with a sentence about what was sampled from a video, before the graphs run.
        """
        check_request(max_new_tokens, self._slice)
        media = self._open_media(images, video, fps)
        for item in media:
            if item.note and on_note:
                on_note(item.note)
        prompt = self._prompt(text, media)
        self._feed_last_token()
        stream = TextStream(self._builder)
        pieces: list[str] = []

        def emit(piece: str) -> None:
            pieces.append(piece)
            if piece and on_text:
                on_text(piece)

        steps = self._engine.num_steps
        try:
            made = generate(
                self._engine,
                [prompt],
                max_new_tokens=max_new_tokens,
                end_tokens=self._ends,
                sampler=self._sampler,
                state=self._state,
                slice_size=self._slice,
                on_token=lambda row, token: emit(stream.push(token)),
            )
        except BaseException:  # an interrupt by the user included
            if self._state is not None and self._state.is_static and self._engine.num_steps > steps:
                self._state, self._unfed = None, ()
            raise
        emit(stream.flush())
        self._state, self._unfed = made.state, made.tokens[0][-1:]
        return _answer("".join(pieces), made, media)

    def _open_media(self, images: Sequence[ImageSource], video: VideoSource | None, fps: float | None) -> list[Media]:
        if fps is not None and video is None:
            raise UsageError("--fps belongs to --video.")
        if (images or video is not None) and VISION_ENCODER not in self._package.components:
            raise InputError(f"{self._package.folder} has no vision encoder: it takes text only.")
        media: list[Media] = []
        if images:
            self._images = self._images or ImagePreprocessor(self._package.folder, self._limits)
            media += [self._images.prepare(source) for source in images]
        if video is not None:
            media.append(prepare_video(video, read_settings(self._package.folder, self._limits), fps))
        return media

    def _prompt(self, text: str, media: Sequence[Media]) -> Prompt:
        message = user_message(text, media)
        if self._state is None:
            system = [] if self._system is None else [{"role": "system", "content": self._system}]
            return self._builder.encode(self._builder.render([*system, message], thinking=self._thinking), media)
        return self._builder.encode(self._builder.render_next_turn(message, thinking=self._thinking), media)

    def _feed_last_token(self) -> None:
        """Let the states see the last token of an answer that was cut off.

        The template closes an answer with its own end mark. If the model said that mark itself it is not repeated; any
        other end token is replaced by it, as the template would write the conversation.
        """
        for token in self._unfed:
            if self._state is not None and token not in self._ends:
                _, self._state = self._engine.decode(np.array([token], np.int64), self._state)
        self._unfed = ()


def _answer(text: str, made: Generation, media: Sequence[Media]) -> Answer:
    notes = tuple(item.note for item in media if item.note)
    return Answer(text, made.tokens[0], made.ended[0], notes, made.statistics)
