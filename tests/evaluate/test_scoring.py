"""Scoring: what the pinned filter and metric of lmms-eval make of an answer.

The values in the table were computed with lmms-eval 0.7.3's own `MultiChoiceRegexFilter` and `exact_match`, on answers
stripped in between as its task code does, and agree with the definitions at the pinned commit.
"""

from __future__ import annotations

import pytest

from qwen_export.evaluate.scoring import chosen_letter, is_right, letters, make_prompt, value_of

# answer text, what the metric compares, option it names among four (None: invalid, counted as wrong)
ANSWERS = [
    ("A", "a", "A"),
    ("B", "b", "B"),
    ("D", "d", "D"),
    ("E", "e", None),
    ("a", "a", "A"),
    ("c", "c", "C"),
    ("A.", "a", "A"),
    ("B. left ventricle", "b", "B"),
    ("C.", "c", "C"),
    (" D.", "d", "D"),
    ("\n\nC. the moon", "c", "C"),
    ("\tB.", "b", "B"),
    (" A", "a", "A"),
    ("A ", "a", "A"),
    ("A\n", "a", "A"),
    ("(A)", "a", "A"),
    ("(B) leaf", "b leaf", None),
    ("[C]", "c", "C"),
    ("{D}", "d", "D"),
    ("<A>", "a", "A"),
    ("( B )", " b ", None),
    ("A)", "a", "A"),
    ("B) stem", "b stem", None),
    ("C:", "c", "C"),
    ("D,", "d", "D"),
    ("**B**", "b", "B"),
    ("`C`", "c", "C"),
    ('"D"', "d", "D"),
    ("'A'", "a", "A"),
    ("$\\boxed{B}$", "boxedb", None),
    ("A.B", "a", "A"),
    ("B.C.", "b", "B"),
    ("A, B", "a b", None),
    ("A and B", "a and b", None),
    ("AB", "ab", None),
    ("A B", "a b", None),
    ("A/B", "ab", None),
    ("C or D", "c or d", None),
    ("A. B. C. D.", "a", "A"),
    ("Z. nothing", "z", None),
    ("b. stem", "b stem", None),
    ("Answer: C", "answer c", None),
    ("The answer is B.", "the answer is b", None),
    ("The correct option is (D).", "the correct option is d", None),
    ("leaf", "leaf", None),
    ("The left ventricle", "the left ventricle", None),
    ("Option A", "option a", None),
    ("1", "1", None),
    ("2.", "2", None),
    ("", "", None),
    ("   ", "", None),
    (".", "", None),
    ("...", "", None),
    ("\u0410", "\u0430", None),  # a Cyrillic capital that only looks like A
    ("\uff21", "\uff41", None),  # a full-width A
    ("\u7532", "\u7532", None),
    ("\u7b54\u6848\u662fB\u3002", "\u7b54\u6848\u662fb\u3002", None),
    ("B\u3002", "b\u3002", None),  # an ideographic full stop is no ASCII punctuation
    ("\u00abC\u00bb", "\u00abc\u00bb", None),
    ("\u0627\u0644\u062c\u0648\u0627\u0628 A", "\u0627\u0644\u062c\u0648\u0627\u0628 a", None),
    ("To determine which part of the diagram shows the larva, we need to", "to determine which part of the diagram "
     "shows the larva we need to", None),
    ("D. The label that points to the outermost layer of the Earth is", "d", "D"),
    ("<think>\n\n</think>\n\nA", "think\n\nthink\n\na", None),
    ("A<|im_end|>", "aimend", None),
    ("\u200bA", "\u200ba", None),
]  # fmt: skip


def test_there_are_at_least_sixty_answers() -> None:
    assert len({text for text, _, _ in ANSWERS}) >= 60


@pytest.mark.parametrize(("text", "value", "letter"), ANSWERS)
def test_an_answer_has_the_value_of_the_pinned_filter(text: str, value: str, letter: str | None) -> None:
    assert value_of(text) == value
    assert chosen_letter(text, 4) == letter
    for target in "ABCD":
        assert is_right(text, target) == (value == target.lower())


def test_a_letter_beyond_the_options_is_invalid() -> None:
    assert chosen_letter("C", 2) is None
    assert chosen_letter("B", 2) == "B"
    assert letters(5) == "ABCDE"


def test_the_prompt_is_lmms_evals_default() -> None:
    assert make_prompt("Which is the leaf?", ["A", "b c", "", "ä"]) == (
        "Which is the leaf?\nA. A\nB. b c\nC. \nD. ä\nAnswer with the option's letter from the given choices directly."
    )
