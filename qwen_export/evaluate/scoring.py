"""What is asked and what counts as right: the facts of lmms-eval's `ai2d` task, in our own code.

Default multiple-choice prompt, filter `flexible-extract`, and metric `exact_match` without case and punctuation, as of
lmms-eval's commit below. Released version 0.7.3 of lmms-eval has the same prompt, filter and metric.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

LMMS_EVAL_COMMIT = "08affba133b97b19351897f4d42081ead2b3412e"
"""The pinned commit this protocol is meant to be; its facts were read in release 0.7.3."""
MAX_NEW_TOKENS = 16
CLOSING = "\nAnswer with the option's letter from the given choices directly."

_LETTER = re.compile(r"\s*([A-Z])\.")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def letters(count: int) -> str:
    """The letters of so many options."""
    return string.ascii_uppercase[:count]


def make_prompt(question: str, options: Sequence[str]) -> str:
    """The user's words: question, one line for each option, and the closing sentence."""
    lines = [f"{letter}. {option}" for letter, option in zip(letters(len(options)), options, strict=True)]
    return "\n".join([question, *lines]) + CLOSING


def extract(text: str) -> str:
    """The filter: a capital letter with a full stop at the start of the answer, or else the whole answer."""
    match = _LETTER.match(text)
    return match[1] if match else text


def value_of(text: str) -> str:
    """What the metric compares: the extracted answer, stripped, in lower case, without ASCII punctuation.

    Blanks inside punctuation stay, as they do there: `( B )` is not `b`.
    """
    return extract(text).strip().lower().translate(_NO_PUNCTUATION)


def is_right(text: str, target: str) -> bool:
    """Whether the metric gives this answer its point; `target` is a letter."""
    return value_of(text) == target.lower()


def chosen_letter(text: str, num_options: int) -> str | None:
    """The option that the answer names to the metric; None if it names none, which counts as wrong."""
    value = value_of(text).upper()
    return value if len(value) == 1 and value in letters(num_options) else None
