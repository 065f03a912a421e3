"""Text through embedding and decoder against Transformers: lengths, padding, slices, batches, near-equal keys."""

from __future__ import annotations

import pytest

from tests.parity.prompts import Case, Text

CASES = {
    **{f"{n} tokens": Case(((Text(n),),), seed=n) for n in (1, 2, 3, 63, 64, 65, 129, 300)},
    "two rows": Case(((Text(129),), (Text(129),)), slices=(64,), seed=1),
    "left padding, one row": Case(((Text(20),),), pad=6, seed=2),
    "left padding beyond a chunk, one row": Case(((Text(9),),), pad=70, seed=3),
    "left padding in a batch": Case(((Text(70),), (Text(61),), (Text(1),)), seed=4),
    "padded batch, all rows padded": Case(((Text(10),), (Text(66),)), pad=3, seed=5),
    "continued slices": Case(((Text(140),),), slices=(20, 3, 1, 46), seed=6),
    "continued slices, two rows": Case(((Text(97),), (Text(97),)), slices=(64, 2), seed=7),
    "padding across slices": Case(((Text(80),), (Text(50),)), slices=(10, 25, 5), seed=8),
    "a first slice of padding alone": Case(((Text(75),), (Text(30),)), slices=(40,), seed=9),
    # never one token: a single token takes the decode branch, which looks at no padding (nor does Transformers there)
    "two first slices of padding alone, two tokens each": Case(((Text(7),), (Text(2),)), slices=(2, 2), seed=10),
    "one token at a time": Case(((Text(6),),), slices=(1, 1, 1, 1, 1), seed=11),
    "identical tokens": Case(((Text(130, "same"),),), slices=(70,), seed=12),
    "identical tokens beside others": Case(((Text(65, "same"),), (Text(90),)), seed=13),
    "periodic tokens": Case(((Text(150, "periodic"),),), seed=14),
    "a placeholder without features": Case(((Text(3), Text(2, "placeholder"), Text(70)), (Text(20),)), seed=15),
    "a long decode": Case(((Text(12),),), steps=24, seed=16),
}


@pytest.mark.parametrize("name", CASES)
def test_text(name, agrees):
    agrees(CASES[name])
