"""Images and videos through all three graphs against Transformers: mixes, feature order, padding, blank pictures."""

from __future__ import annotations

import pytest

from tests.parity.prompts import Case, Media, Text

SMALL, WIDE, TALL = Media((1, 4, 6)), Media((1, 4, 14)), Media((1, 10, 8))
CLIP = Media((3, 4, 6), "video")
CASES = {
    "one image": Case(((Text(4), SMALL, Text(9)),), seed=1),
    "two images of unequal size": Case(((Text(4), WIDE, Text(3), TALL, Text(9)),), seed=2),
    "a video": Case(((Text(4), CLIP, Text(9)),), seed=3),
    "a video, then an image": Case(((Text(4), CLIP, Text(2), WIDE, Text(9)),), seed=4),
    "images around a video": Case(((TALL, Text(2), CLIP, SMALL, Text(9)),), seed=5),
    "rows whose media differ in number and kind": Case(
        ((Text(3), CLIP, Text(2), SMALL, Text(5)), (Text(4), WIDE, TALL, Text(2), Media((2, 6, 4), "video"), Text(6))),
        seed=6,
    ),
    "a text row beside an image row": Case(((Text(30),), (Text(2), TALL, Text(5))), seed=7),
    "an image row above a longer text row": Case(((Text(2), SMALL, Text(5)), (Text(90),)), seed=8),
    "left padding, one row": Case(((Text(2), WIDE, Text(5)),), pad=7, seed=9),
    "slices cut through an image": Case(((Text(4), TALL, Text(50)),), slices=(10, 3, 20), seed=10),
    "slices, two rows, one begins late": Case(((Text(40), CLIP, Text(8)), (SMALL, Text(9))), slices=(30, 9), seed=11),
    "a blank image": Case(((Text(4), Media((1, 16, 18), look="blank"), Text(9)),), seed=12),
    "a blank video beside noise": Case(((Text(4), Media((3, 8, 8), "video", "blank"), SMALL, Text(9)),), seed=13),
    "a long image prompt": Case(((Text(60), Media((1, 20, 24)), Text(70)),), slices=(128,), seed=14),
}


@pytest.mark.parametrize("name", CASES)
def test_media(name, agrees):
    agrees(CASES[name])
