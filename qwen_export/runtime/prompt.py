"""Prompts: the checkpoint's own chat template and tokenizer, and placeholders expanded to the right counts."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qwen_export.errors import InputError, PackageError, UsageError
from qwen_export.model_config import ModelConfig
from qwen_export.runtime.preprocess import IMAGE, VIDEO, Media, require_file

Message = dict[str, Any]
"""`{"role": ..., "content": text or list of parts}`, as chat templates take it."""

_ANSWER_MARK = "qwen-export-answer-mark"
"""Stands for an earlier answer while the template is asked what follows one."""


@dataclass(frozen=True)
class Prompt:
    """One row for the decoder."""

    input_ids: np.ndarray
    """int64 [S], placeholders expanded."""
    media: tuple[Media, ...] = ()
    """In the order of their placeholders."""

    def grids(self, kind: str) -> np.ndarray:
        """int64 [M, 3] of one kind of media."""
        return np.array([item.grid for item in self.media if item.kind == kind], dtype=np.int64).reshape(-1, 3)


def user_message(text: str, media: Sequence[Media] = ()) -> Message:
    """A user's turn: pictures and videos first, then the text."""
    if not media:
        return {"role": "user", "content": text}
    return {"role": "user", "content": [*({"type": item.kind} for item in media), {"type": "text", "text": text}]}


class PromptBuilder:
    """Turns messages and media into token ids with the files of one package."""

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        require_file(folder, "tokenizer.json", "vocab.json")
        self.config = config
        self.tokenizer = _load_tokenizer(folder)
        if self.tokenizer.chat_template is None:
            raise PackageError(f"{folder} has no chat template (chat_template.jinja). Add it, or export again with it.")
        self.tokens = {IMAGE: self._token(config.image_token_id), VIDEO: self._token(config.video_token_id)}
        self.vision_start = self._token(config.vision_start_token_id)
        self.vision_end = self._token(config.vision_end_token_id)

    def render(self, messages: Sequence[Message], *, thinking: bool = False) -> str:
        """The conversation as text, ready for an answer; placeholders not yet expanded."""
        try:
            return self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True, enable_thinking=thinking
            )
        except Exception as error:  # a template is code of the checkpoint and may raise anything
            raise InputError(f"The checkpoint's chat template refused the conversation: {error}") from None

    def render_next_turn(self, message: Message, *, thinking: bool = False) -> str:
        """What follows an answer of the model: its end mark, the user's next turn, and the opening of an answer."""
        conversation = [user_message("-"), {"role": "assistant", "content": _ANSWER_MARK}, message]
        _, mark, rest = self.render(conversation, thinking=thinking).partition(_ANSWER_MARK)
        if not mark:
            raise PackageError("The checkpoint's chat template drops earlier answers, so a chat cannot be continued.")
        return rest

    def encode(self, text: str, media: Sequence[Media] = ()) -> Prompt:
        """Expand placeholders and tokenize. Checks counts, ids against the vocabulary, and that something is there."""
        ids = np.array(self.tokenizer(self.expand(text, media), add_special_tokens=False)["input_ids"], dtype=np.int64)
        if not len(ids):
            raise InputError("The prompt is empty.")
        vocabulary = self.config.text.vocab_size
        if ids.max() >= vocabulary:
            raise PackageError(
                f"The tokenizer gave token {ids.max()}, but the model's vocabulary ends at {vocabulary - 1}. "
                "The tokenizer files are not those of this model."
            )
        self._check_placeholders(ids, media)
        return Prompt(ids, tuple(media))

    def expand(self, text: str, media: Sequence[Media]) -> str:
        """Replace each placeholder by as many as its picture has features; a video's also by timestamps."""
        pattern = re.compile("|".join(f"(?P<{kind}>{re.escape(token)})" for kind, token in self.tokens.items()))
        queues = {kind: [item for item in media if item.kind == kind] for kind in self.tokens}
        for kind, queue in queues.items():
            found = text.count(self.tokens[kind])
            if found != len(queue):
                raise InputError(
                    f"The prompt has {found} {kind} placeholder(s) ({self.tokens[kind]}) but {len(queue)} {kind}(s) "
                    f"were given. Give one {kind} for each, and do not write the placeholder into the text yourself."
                )
        in_text = [match.lastgroup for match in pattern.finditer(text)]
        if in_text != [item.kind for item in media]:
            raise InputError("Images and videos are not in the order of their placeholders in the prompt.")
        return pattern.sub(lambda match: self._expansion(queues[str(match.lastgroup)].pop(0)), text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, without special tokens."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _expansion(self, item: Media) -> str:
        assert self.config.vision is not None
        count = item.num_features(self.config.vision.merge_unit)
        if item.kind == IMAGE:
            return self.tokens[IMAGE] * count
        block = self.vision_start + self.tokens[VIDEO] * (count // item.grid[0]) + self.vision_end
        return "".join(f"<{seconds:.1f} seconds>{block}" for seconds in item.timestamps)

    def _check_placeholders(self, ids: np.ndarray, media: Sequence[Media]) -> None:
        if self.config.vision is None:
            if media:
                raise InputError("This package has no vision encoder: it takes text only.")
            return
        for kind, token in ((IMAGE, self.config.image_token_id), (VIDEO, self.config.video_token_id)):
            wanted = sum(item.num_features(self.config.vision.merge_unit) for item in media if item.kind == kind)
            found = int((ids == token).sum())
            if found != wanted:
                raise PackageError(
                    f"The tokenizer made {found} {kind} placeholder tokens of {wanted}. It does not know "
                    f"{self.tokens[kind]} as one token; the tokenizer files are not those of this model."
                )

    def _token(self, token_id: int) -> str:
        token = self.tokenizer.convert_ids_to_tokens(token_id) if token_id < len(self.tokenizer) else None
        if token is None:
            # A text-only checkpoint need not have the vision tokens; nothing can then be a placeholder.
            return f"<|no token {token_id}|>"
        return token


class TextStream:
    """Turns tokens into text as they come, holding back bytes that do not yet make a whole character."""

    def __init__(self, builder: PromptBuilder) -> None:
        self._builder = builder
        self._ids: list[int] = []
        self._first = 0
        """Start of the tokens that are decoded together: those before it are finished text."""
        self._emitted = 0

    def push(self, token: int) -> str:
        """The text that this token completes; may be empty."""
        self._ids.append(token)
        text = self._builder.decode(self._ids[self._first :])
        if text.endswith("�"):
            return ""
        out = text[self._emitted :]
        self._emitted = len(text)
        if out.endswith("\n"):  # a safe place to cut: decoding cost stays flat over long answers
            self._first, self._emitted = len(self._ids), 0
        return out

    def flush(self) -> str:
        """What was held back, at the end of an answer."""
        text = self._builder.decode(self._ids[self._first :])
        out, self._emitted = text[self._emitted :], len(text)
        return out


def _load_tokenizer(folder: Path) -> Any:
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise UsageError(f"The tokenizer needs Transformers: {error}. Install transformers>=5.17.") from None
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # Transformers raises many kinds for a damaged or foreign tokenizer
        raise PackageError(f"The tokenizer files in {folder} cannot be used: {error}") from None
