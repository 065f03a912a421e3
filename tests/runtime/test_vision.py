"""Packs of pictures: no more than twice the real rows, no segment lost, videos cut between frame groups."""

from __future__ import annotations

import numpy as np
import pytest

from qwen_export.errors import UsageError
from qwen_export.runtime import memory, vision
from qwen_export.runtime.graphs import Graphs
from qwen_export.runtime.memory import MemoryModel
from qwen_export.runtime.preprocess import IMAGE, VIDEO, Media
from qwen_export.runtime.vision import MAX_ROWS, encode_media, pack, segments_of


@pytest.mark.parametrize("seed", range(30))
def test_padded_rows_are_at_most_twice_the_real_ones(seed):
    rng = np.random.default_rng(seed)
    rows = [int(4 * n) for n in np.exp(rng.uniform(0, 9, size=rng.integers(1, 40)))]
    packs = pack(rows)
    assert sorted(index for group in packs for index in group) == list(range(len(rows)))
    for group in packs:
        members = [rows[index] for index in group]
        padded = len(members) * max(members)
        assert padded <= 2 * sum(members)
        assert padded <= MAX_ROWS or len(members) == 1


def test_one_large_picture_among_small_ones_runs_alone():
    assert pack([16, 65536, 16, 16]) == [[1], [0, 2, 3]]


def test_equal_pictures_share_a_run_up_to_the_limit():
    assert [len(group) for group in pack([4096] * 6)] == [4, 2]


def test_a_pack_that_does_not_fit_is_halved(tiny_package, monkeypatch):
    graphs = Graphs(tiny_package)
    rng = np.random.default_rng(0)
    width = tiny_package.config.vision.patch_width
    media = [Media(IMAGE, rng.normal(size=(48, width)).astype(np.float32), (1, 6, 8), str(i)) for i in range(5)]
    together = encode_media(graphs, media)
    sizes = []
    run = Graphs.run_to_host
    model = MemoryModel(graphs.config, graphs.recipe, graphs.device)
    monkeypatch.setattr(memory, "RESERVE", 0)
    monkeypatch.setattr(vision, "free_memory", lambda device: model.vision(2, 48))

    def counted(self, component, inputs):
        sizes.append(len(inputs["image_grid_thw"]))
        return run(self, component, inputs)

    monkeypatch.setattr(Graphs, "run_to_host", counted)
    apart = encode_media(graphs, media)
    assert sorted(sizes) == [1, 2, 2]
    assert np.abs(together - apart).max() < 5e-5
    monkeypatch.setattr(vision, "free_memory", lambda device: model.vision(1, 48) - 1)
    with pytest.raises(UsageError, match="--max-pixels"):
        encode_media(graphs, media)


def test_a_video_has_one_segment_per_frame_group():
    media = [Media(IMAGE, np.empty((0, 0)), (1, 4, 6), "a"), Media(VIDEO, np.empty((0, 0)), (3, 2, 2), "b")]
    found = [(s.media, s.step, s.rows) for s in segments_of(media)]
    assert found == [(0, 0, 24), (1, 0, 4), (1, 1, 4), (1, 2, 4)]
