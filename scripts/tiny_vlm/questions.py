"""Ask about a scene: six kinds of question, each with a free answer or as four lettered choices, and one description.

| kind | example | free answer |
|---|---|---|
| color | What color is part K? | red |
| shape | What shape is part K? | circle |
| which | Which part is the red circle? | K |
| at | Which part is at the top left? | K |
| place | Where is part K? | top left |
| count | How many circles are there? | 2 |
| describe (free only) | Describe part K. | Part K is a red circle at the top left. |

Arrows between parts are not asked about: a tower of this size does not learn to follow them.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tiny_vlm.scenes import COLOURS, HELD_OUT_PAIRS, LABELS, PLACES, SHAPES, Part

KINDS = ("color", "shape", "which", "at", "place", "count", "describe")
HARD_KINDS = ("which", "at")
"""Asked in every conversation: label and option letter have to be found one after the other."""
LETTERS = "ABCD"
CLOSING = "\nAnswer with the option's letter from the given choices directly."
"""How lmms-eval ends a multiple-choice question of AI2D."""

_WORDS: dict[str, Sequence[str]] = {
    "color": tuple(COLOURS),
    "shape": SHAPES,
    "which": LABELS,
    "at": LABELS,
    "place": PLACES,
    "count": tuple("0123456789"),
}


@dataclass(frozen=True)
class Question:
    """What is asked and the only right answer; `options` is empty for a free answer."""

    kind: str
    text: str
    answer: str
    options: tuple[str, ...] = ()
    target: int = -1
    """Index of the right option."""

    @property
    def prompt(self) -> str:
        """The user's words, without the picture."""
        if not self.options:
            return self.text
        lines = [f"{letter}. {option}" for letter, option in zip(LETTERS, self.options, strict=True)]
        return "\n".join([self.text, *lines]) + CLOSING

    @property
    def reply(self) -> str:
        """What the assistant should say."""
        return LETTERS[self.target] if self.options else self.answer


def is_held_out_order(kind: str, options: Sequence[str]) -> bool:
    """Whether this order of these four options is kept from training: about one in seven.

    Whole orders are kept, not single words at single letters. The training that made the committed checkpoint never
    listed a word at one of the letters, and so taught the model to answer by exclusion: 97 % right on orders that kept
    the rule, 65 % on others. A held-out order is one that neither that training nor a later one shows.
    """
    by_hash = zlib.crc32("|".join([kind, *options]).encode()) % 5 == 0
    return by_hash and not is_plain_order(kind, options)


def is_plain_order(kind: str, options: Sequence[str]) -> bool:
    """Whether the training of the committed checkpoint could show this order: no word at the letter it shunned."""
    words = [_WORDS[kind].index(option) for option in options]
    return all(word % 4 != place or (kind == "shape" and word >= 2) for place, word in enumerate(words))


def ask_several(rng: Random, parts: Sequence[Part], count: int, letters: float) -> list[Question]:
    """Questions of one conversation, a share of them multiple choice: each of another kind, the parts taken in turn,
    so that an earlier answer seldom gives away a later one."""
    order = rng.sample(parts, len(parts))
    questions = []
    kinds = [*HARD_KINDS, *rng.sample([kind for kind in KINDS if kind not in HARD_KINDS], max(0, count - 2))]
    for turn, kind in enumerate(rng.sample(kinds, len(kinds)) if count else ()):
        choice = kind != "describe" and rng.random() < letters
        questions.append(ask(rng, parts, letters=choice, kind=kind, part=order[turn % len(order)]))
    return questions


def ask(
    rng: Random,
    parts: Sequence[Part],
    *,
    letters: bool,
    kind: str | None = None,
    part: Part | None = None,
    held_out: bool = False,
    plain_order: bool = False,
) -> Question:
    """One question.

    Args:
        letters: as multiple choice.
        kind: one of `KINDS`, or any.
        part: what to ask about, or any part.
        held_out: ask about a pair of colour and shape, and list the options in an order, that training never shows.
        plain_order: list the options in an order as `is_plain_order` has it instead.
    """
    kind = kind or rng.choice(KINDS[:-1] if letters else KINDS)
    part = part or rng.choice(parts)
    if held_out and rng.random() < 0.6:
        part = rng.choice([item for item in parts if (item.colour, item.shape) in HELD_OUT_PAIRS])
    text, answer = _PHRASES[kind](rng, parts, part)
    if not letters:
        return Question(kind, text, answer)
    options = _options(rng, kind, answer, parts)
    tries = 0
    while not is_plain_order(kind, options) if plain_order else is_held_out_order(kind, options) != held_out:
        # A few sets of options have no held-out order at all; then the letters of the picture cannot come first.
        tries += 1
        options = _options(rng, kind, answer, parts if tries < 100 else ())
    return Question(kind, text, answer, tuple(options), options.index(answer))


def _options(rng: Random, kind: str, answer: str, parts: Sequence[Part]) -> list[str]:
    """The answer and three wrong ones, in any order."""
    if kind == "count":
        number = int(answer)
        first = rng.randint(max(0, number - 3), number)
        return rng.sample([str(first + i) for i in range(4)], 4)
    wrong = [word for word in _WORDS[kind] if word != answer]
    if kind in ("which", "at"):
        # The letters that are in the picture come first, so that seeing which letters there are is not enough.
        shown = [part.label for part in parts if part.label != answer]
        rest = [word for word in wrong if word not in shown]
        wrong = rng.sample(shown, min(3, len(shown))) + rng.sample(rest, 3)
        return rng.sample([answer, *wrong[:3]], 4)
    return rng.sample([answer, *rng.sample(wrong, 3)], 4)


def _unique(parts: Sequence[Part], part: Part) -> bool:
    return sum((other.colour, other.shape) == (part.colour, part.shape) for other in parts) == 1


def _ask_color(rng: Random, parts: Sequence[Part], part: Part) -> tuple[str, str]:
    return rng.choice((f"What color is part {part.label}?", f"Which color does part {part.label} have?")), part.colour


def _ask_shape(rng: Random, parts: Sequence[Part], part: Part) -> tuple[str, str]:
    return rng.choice((f"What shape is part {part.label}?", f"Which shape does part {part.label} have?")), part.shape


def _ask_which(rng: Random, parts: Sequence[Part], part: Part) -> tuple[str, str]:
    if not _unique(parts, part):
        return _ask_at(rng, parts, part)
    thing = f"the {part.colour} {part.shape}"
    return rng.choice((f"Which part is {thing}?", f"What is the label of {thing}?")), part.label


def _ask_at(rng: Random, parts: Sequence[Part], part: Part) -> tuple[str, str]:
    return f"Which part is at the {PLACES[part.place]}?", part.label


def _ask_place(rng: Random, parts: Sequence[Part], part: Part) -> tuple[str, str]:
    thing = f"part {part.label}"
    if _unique(parts, part) and rng.random() < 0.5:
        thing = f"the {part.colour} {part.shape}"
    return f"Where is {thing}?", PLACES[part.place]


def _ask_count(rng: Random, parts: Sequence[Part], part: Part) -> tuple[str, str]:
    what = rng.random()
    if what < 0.34:
        return "How many parts are there?", str(len(parts))
    if what < 0.67:
        shape = part.shape if rng.random() < 0.7 else rng.choice(SHAPES)
        return f"How many {shape}s are there?", str(sum(other.shape == shape for other in parts))
    colour = part.colour if rng.random() < 0.7 else rng.choice(tuple(COLOURS))
    return f"How many {colour} parts are there?", str(sum(other.colour == colour for other in parts))


def _ask_describe(rng: Random, parts: Sequence[Part], part: Part) -> tuple[str, str]:
    article = "an" if part.colour == "orange" else "a"
    sentence = f"Part {part.label} is {article} {part.colour} {part.shape} at the {PLACES[part.place]}."
    return f"Describe part {part.label}.", sentence


_PHRASES = {
    "color": _ask_color,
    "shape": _ask_shape,
    "which": _ask_which,
    "at": _ask_at,
    "place": _ask_place,
    "count": _ask_count,
    "describe": _ask_describe,
}
