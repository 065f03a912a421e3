"""The pipeline ends in standard operators, at every depth, or says what is left."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from qwen_export.errors import InternalError
from qwen_export.passes.pipeline import lower
from qwen_export.recipe import Recipe

HEADER = '<ir_version: 10, opset_import: ["": 24, "qwen_export": 1]>\n'


@pytest.mark.parametrize(
    ("left", "text"),
    [
        ("unheard_of", "g (float[2] x) => (float[2] y) { y = qwen_export.unheard_of(x) }"),
        (
            "SequenceAt",
            """g (float[4] x, int64 i, int64[2] n) => (float[2] y) {
                s = SplitToSequence <axis = 0> (x, n)  y = SequenceAt(s, i)
            }""",
        ),
        (
            "unheard_of",
            """g (float[2] x, bool c) => (float[2] y) {
                y = If(c) <then_branch = a () => (float[2] p) { p = qwen_export.unheard_of(x) },
                           else_branch = b () => (float[2] q) { q = Neg(x) }>
            }""",
        ),
    ],
)
def test_what_no_pass_took_is_our_fault_by_name(left, text):
    model = ir.from_onnx_text(HEADER + text)
    with pytest.raises(InternalError, match=left):
        lower(model, Recipe())
