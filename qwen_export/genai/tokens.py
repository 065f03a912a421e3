"""The token ids GenAI is told, and their audit: GenAI takes wrong ones without a word.

A wrong vision-start or image id gives text positions to pictures. Every prompt token equal to the pad id is hidden from
the model. A missing end token lets the model begin the user's next turn by itself. GenAI's own picture processor looks
for three tokens by their text, whatever the ids say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qwen_export.errors import PackageError, QwenExportError
from qwen_export.model_config import ModelConfig
from qwen_export.package import Finding, Package
from qwen_export.runtime.preprocess import read_json
from qwen_export.runtime.prompt import Message, PromptBuilder
from qwen_export.runtime.sampling import end_tokens

VISION_TOKENS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
"""Key of config.json -> the token's text, as GenAI's picture processor spells it."""
PADDING = "<|endoftext|>"
"""Qwen's padding token."""
FILE = "genai_config.json"


@dataclass(frozen=True)
class TokenIds:
    """The ids of a package."""

    end: tuple[int, ...]
    pad: int
    begin: int | None
    vision: dict[str, int]
    """Key of config.json -> id; empty for a text-only package."""

    def to_config(self) -> dict[str, Any]:
        """The entries of genai_config.json."""
        entries: dict[str, Any] = {"bos_token_id": self.begin, "eos_token_id": list(self.end) or None}
        entries["pad_token_id"] = self.pad
        entries |= {key: value for key, value in self.vision.items() if key != "vision_end_token_id"}
        return {key: value for key, value in entries.items() if value is not None}


class TokenFacts:
    """What the tokenizer, the chat template and the configs of a package say about ids."""

    def __init__(self, package: Package) -> None:
        self.package = package
        self.config: ModelConfig = package.config
        self._builder = PromptBuilder(package.folder, package.config)
        self.tokenizer = self._builder.tokenizer
        self.has_vision = "vision_encoder" in package.components
        self.generation = _generation(package)

    def choose(self) -> TokenIds:
        """The ids for genai_config.json.

        Raises:
            PackageError: no token can serve as padding.
        """
        used = self.prompt_ids()
        wanted = [self.generation.get("pad_token_id"), self.tokenizer.pad_token_id, self.id_of(PADDING)]
        pad = next(
            (token for token in wanted if token is not None and self.is_known(token) and token not in used), None
        )
        if pad is None:
            raise PackageError(
                f"{self.package.folder} has no token that can serve as padding: GenAI hides it from every prompt, and "
                f"{_list(wanted)} are part of prompts or unknown to the tokenizer. Give the tokenizer {PADDING}."
            )
        begin = self.generation.get("bos_token_id")
        vision = {key: getattr(self.config, key) for key in VISION_TOKENS} if self.has_vision else {}
        ends = tuple(sorted(end_tokens(self.package.folder, self.config)))
        return TokenIds(ends, int(pad), begin, vision)

    def audit(self, said: Mapping[str, Any]) -> Iterator[Finding]:
        """Findings on the ids of a genai_config.json (its `model` section) against tokenizer, template and config."""
        if self.has_vision:
            yield from self._audit_vision(said)
        pad = said.get("pad_token_id")
        if pad is not None and pad in self.prompt_ids():
            yield _finding(f"pad_token_id {pad} ({self.name(pad)}) is part of prompts; GenAI would hide it there.")
        listed = _as_set(said.get("eos_token_id"))
        missing = end_tokens(self.package.folder, self.config) - listed
        if missing:
            yield _finding(f"eos_token_id lacks {_list(sorted(missing))}, where Transformers ends an answer.")
        for key, value in (("pad_token_id", pad), *(("eos_token_id", token) for token in sorted(listed))):
            if value is not None and not self.is_known(value):
                yield _finding(f"{key} {value} is no token of the tokenizer.")

    def remarks(self, said: Mapping[str, Any]) -> Iterator[str]:
        """What is no fault of the files but should be known."""
        turn_end = self._end_of_turn()
        if turn_end is not None and turn_end not in _as_set(said.get("eos_token_id")):
            yield (
                f"The chat template ends a turn with {self.name(turn_end)} ({turn_end}), which is no end token of this "
                "checkpoint: answers go on until the limit, here as in Transformers."
            )

    def prompt_ids(self) -> set[int]:
        """Ids in a conversation that uses everything the template knows."""
        parts = [{"type": "image"}, {"type": "video"}] if self.has_vision else []
        asked: Message = {"role": "user", "content": [*parts, {"type": "text", "text": "Hello?"}]}
        answered: Message = {"role": "assistant", "content": "Hello."}
        ids: set[int] = set()
        for thinking in (False, True):
            text = self._builder.render([asked, answered, asked], thinking=thinking)
            ids |= set(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return ids

    def id_of(self, text: str) -> int | None:
        """Id of a token by its text, None if the tokenizer does not have it as one token."""
        token = self.tokenizer.convert_tokens_to_ids(text)
        return None if token is None or self.name(token) != text else int(token)

    def name(self, token: int) -> str:
        """Text of a token."""
        return str(self.tokenizer.convert_ids_to_tokens(token)) if self.is_known(token) else "no token"

    def is_known(self, token: int) -> bool:
        """Whether the tokenizer has this id."""
        return 0 <= token < len(self.tokenizer) and self.tokenizer.convert_ids_to_tokens(token) is not None

    def _audit_vision(self, said: Mapping[str, Any]) -> Iterator[Finding]:
        for key, text in VISION_TOKENS.items():
            ours, tokenizers = getattr(self.config, key), self.id_of(text)
            if tokenizers != ours:
                yield Finding(
                    "ids",
                    f"{key} is {ours}, but the tokenizer has {text} as {tokenizers}; GenAI looks for that text.",
                    "config.json",
                )
            if key != "vision_end_token_id" and said.get(key) != ours:
                yield _finding(f"{key} is {said.get(key)}, the model's is {ours}.")

    def _end_of_turn(self) -> int | None:
        """First token that the template writes after an answer."""
        try:
            following = self._builder.render_next_turn({"role": "user", "content": "-"})
        except QwenExportError:  # a template that takes no second turn ends none
            return None
        ids = self.tokenizer(following, add_special_tokens=False)["input_ids"]
        return int(ids[0]) if ids else None


def _generation(package: Package) -> dict[str, Any]:
    path = package.folder / "generation_config.json"
    return read_json(path) if path.is_file() else {}


def _as_set(ids: Any) -> set[int]:
    return set(ids) if isinstance(ids, list) else set() if ids is None else {ids}


def _finding(message: str) -> Finding:
    return Finding("ids", message, FILE)


def _list(ids: Any) -> str:
    return ", ".join(str(token) for token in ids if token is not None)
