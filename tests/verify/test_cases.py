"""The suites: what they must hold, drawn the same every time, and carried in a file without loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qwen_export.errors import UsageError
from qwen_export.verify.cases import Case, CaseMaker, needs_vision, plans, sampled_rows
from qwen_export.verify.pictures import asymmetric_picture, moving_frames
from qwen_export.verify.verdict import MIN_CASES


@pytest.fixture(scope="module")
def cases(tiny_config, tiny_checkpoint: Path) -> dict[str, Case]:
    maker = CaseMaker(tiny_config, tiny_checkpoint)
    return {plan.name: maker.make(plan, seed) for plan, seed in plans("quick")}


@pytest.mark.parametrize(("suite", "steps"), [("quick", 4), ("full", 64)])
def test_a_suite_holds_what_reports_are_about(suite: str, steps: int) -> None:
    chosen = plans(suite)
    lone = [row for plan, _ in chosen for row in plan.rows if row.startswith("text ") and "," not in row]
    lengths = {int(row.split()[1]) for row in lone}
    assert {1, 65, 300} <= lengths and max(lengths) > 1000
    assert len(chosen) >= MIN_CASES
    assert all(plan.steps >= steps or plan.growing for plan, _ in chosen)
    kinds = " ".join(row for plan, _ in chosen for row in plan.rows)
    assert "image" in kinds and "video" in kinds
    assert any(plan.repeat for plan, _ in chosen) and any(plan.growing for plan, _ in chosen)
    assert any(len(plan.slices) > 1 for plan, _ in chosen)
    assert any(len(plan.rows) > 1 and needs_vision(plan) for plan, _ in chosen)


def test_unknown_suite_is_refused() -> None:
    with pytest.raises(UsageError, match="quick, full"):
        plans("huge")


def test_cases_are_what_their_plans_say(cases: dict[str, Case], tiny_config) -> None:
    for case in cases.values():
        assert sum(case.slices) == case.length and min(case.slices) > 0
        placeholders = np.isin(case.input_ids, [tiny_config.image_token_id, tiny_config.video_token_id])
        rows = sum(item.num_features(tiny_config.vision.merge_unit) for item in case.media)
        assert placeholders.sum() == rows
        assert not placeholders[:, case.slices[0] :].any(), "media lie in the first slice"
        assert (np.diff(case.mask, axis=1) >= 0).all(), "padding leads"
        assert set(np.cumsum(case.slices) - 1) <= set(case.positions)
    grids = [item.grid for item in cases["unequal-images"].media]
    assert len({grid for grid in grids}) == 3 and any(h != w for _, h, w in grids)
    assert cases["video"].media[0].grid[0] == 3, "five frames are three groups"
    assert len(set(cases["same-tokens"].input_ids[0])) < 12


def test_drawing_twice_gives_the_same(cases: dict[str, Case], tiny_config, tiny_checkpoint: Path) -> None:
    maker = CaseMaker(tiny_config, tiny_checkpoint)
    plan = next(plan for plan, _ in plans("quick") if plan.name == "mixed-rows")
    again, other = maker.make(plan, 0), maker.make(plan, 1)
    assert np.array_equal(again.input_ids, cases["mixed-rows"].input_ids)
    assert np.array_equal(again.media[0].pixel_values, cases["mixed-rows"].media[0].pixel_values)
    assert not np.array_equal(again.input_ids, other.input_ids)


def test_arrays_hold_a_case_whole(cases: dict[str, Case]) -> None:
    for case in cases.values():
        back = Case.from_arrays(case.to_arrays())
        for name in ("name", "seed", "slices", "steps", "growing", "positions"):
            assert getattr(back, name) == getattr(case, name)
        assert np.array_equal(back.input_ids, case.input_ids) and np.array_equal(back.mask, case.mask)
        for one, two in zip(back.media, case.media, strict=True):
            assert (one.kind, one.grid) == (two.kind, two.grid)
            assert np.array_equal(one.pixel_values, two.pixel_values)


def test_pictures_show_every_swap() -> None:
    picture = np.asarray(asymmetric_picture(np.random.default_rng(0), 96, 64)).astype(int)
    for changed in (picture[::-1], picture[:, ::-1], picture[:, :, ::-1], np.roll(picture, 16, axis=1)):
        assert np.abs(changed - picture).mean() > 15
    first, second = moving_frames(np.random.default_rng(0), 2, 96, 64)
    assert np.abs(np.asarray(first).astype(int) - np.asarray(second).astype(int)).max() > 100


def test_sampled_rows_are_spread_over_all() -> None:
    assert sampled_rows(7).tolist() == list(range(7))
    rows = sampled_rows(1000)
    assert len(rows) == 256 == len(set(rows)) and rows[0] == 0 and rows[-1] == 999
