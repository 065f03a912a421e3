"""The page: whole in itself, the verdict first, nothing left out, nothing interpreted as markup."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from qwen_export.verify import VerifyReport, verify
from qwen_export.verify.parity import Tensor
from qwen_export.verify.plot import Series, plot
from qwen_export.verify.report import page


@pytest.fixture(scope="module")
def good(packages, references) -> VerifyReport:
    return verify(packages("fp32"), reference=references("fp32"), bisect=True)


class Balanced(HTMLParser):
    """Refuses a page whose tags do not close."""

    def handle_startendtag(self, tag, attrs) -> None:
        pass

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag


def test_it_is_whole_in_itself_and_small(good: VerifyReport) -> None:
    text = page(good)
    assert len(text.encode()) < 2_000_000
    assert not re.search(r"(src|href)=|https?://|@import|url\(", text)
    reader = Balanced()
    reader.feed(text)
    assert not reader.open
    assert text.count("<svg") == 6


def test_the_verdict_comes_first(good: VerifyReport) -> None:
    text = page(good)
    assert text.index("PASSED") < text.index("<h2>")
    failed = replace(good, checks=[replace(check, passed=False) for check in good.checks])
    text = page(failed)
    assert "PASSED" not in text and text.index("FAILED") < text.index("<h2>")
    assert text.count('class="no"') >= len(good.checks)


def test_every_tensor_case_and_limit_is_there(good: VerifyReport) -> None:
    text = page(good)
    for tensor in good.ledger.tensors():
        assert f"<td>{tensor}</td>" in text
    for case in (*good.cases, *good.not_run):
        assert case in text
    for name in ("fp32_max_abs", "fp32_relative_rms", "operation_error", "Transformers 5.", "float64"):
        assert name in text


def test_what_was_not_run_is_listed(good: VerifyReport) -> None:
    text = page(replace(good, not_run={"video#0": "no <video> settings"}))
    assert "video#0" in text and "no &lt;video&gt; settings" in text


def test_names_are_text_and_not_markup(good: VerifyReport) -> None:
    text = page(replace(good, package=Path("a<script>b")))
    assert "<script" not in text and "a&lt;script&gt;b" in text


def test_numbers_that_are_not_finite_are_drawn_and_written(good: VerifyReport) -> None:
    entries = dict(good.ledger.entries)
    key = (Tensor("hidden", 2), good.cases[0])
    entries[key] = replace(entries[key], not_finite=3, ours=math.inf)
    text = page(replace(good, ledger=replace(good.ledger, entries=entries)))
    assert 'class="cross"' in text


def test_a_plot_has_a_point_for_every_layer() -> None:
    drawn = plot([Series("ours", "ours", [(0, 1e-3), (3, 0.0), (9, math.nan)])], "decoder layer", 'a "title"')
    assert drawn.count("<circle") == 2 and drawn.count('class="cross"') == 1
    assert "&quot;title&quot;" in drawn
    assert not re.search(r'"(nan|inf|-?\d+e)', drawn)
