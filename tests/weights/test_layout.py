"""Places of weights in a data file."""

from __future__ import annotations

from itertools import pairwise

from qwen_export.bindings import Binding, Part, vector
from qwen_export.weights import plan_layout, stored_bytes
from qwen_export.weights.layout import PAGE, SMALL_ALIGNMENT


def matrix(rows: int, columns: int, dtype: str = "float16") -> Binding:
    return Binding((Part("w"),), dtype, (rows, columns))


def test_order_is_that_of_the_bindings_and_the_file_ends_with_the_last_weight() -> None:
    bindings = {"b": vector("b", 3, "float16"), "a": matrix(1024, 512), "c": vector("c", 5, "float32")}
    layout = plan_layout(bindings)
    assert list(layout.slots) == ["b", "a", "c"]
    assert [slot.offset for slot in layout.slots.values()] == [0, PAGE, PAGE + 1024 * 512 * 2]
    assert layout.size == layout.slots["c"].end == PAGE + 1024 * 512 * 2 + 20


def test_large_weights_start_on_pages_and_small_ones_on_64_bytes() -> None:
    bindings = {f"w{i}": matrix(7 + 211 * i, 331) for i in range(12)}
    layout = plan_layout(bindings)
    for name, slot in layout.slots.items():
        assert slot.num_bytes == stored_bytes(bindings[name])
        assert slot.offset % (PAGE if slot.num_bytes >= 1 << 20 else SMALL_ALIGNMENT) == 0
    for before, after in pairwise(layout.slots.values()):
        assert 0 <= after.offset - before.end < PAGE


def test_a_graph_without_weights_has_an_empty_file() -> None:
    assert plan_layout({}).size == 0
