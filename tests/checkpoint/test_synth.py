"""Synthetic checkpoints: sizes, bytes that depend on seed and name alone, and writing whole or not at all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from qwen_export.checkpoint import load_config, open_config, open_snapshot
from qwen_export.checkpoint.synth import plan, synthesise, weights
from qwen_export.checkpoint.synth.weights import SyntheticWeights, num_blocks
from qwen_export.contract import COMPONENTS, TEXT
from qwen_export.errors import UsageError


def test_the_plan_of_the_27b_model_is_the_official_one() -> None:
    planned = plan(load_config("qwen3.8-27b"))
    assert planned.num_shards == 18
    assert planned.num_bytes == 55_562_855_904
    assert planned.num_visual_tensors == 333
    assert planned.num_tensors == 1199


def test_the_plan_is_what_is_written(tiny_checkpoint: Path) -> None:
    planned = plan(load_config("tiny"))
    snapshot = open_snapshot(tiny_checkpoint)
    index = json.loads((tiny_checkpoint / "model.safetensors.index.json").read_text("utf-8"))
    assert planned.num_tensors == len(index["weight_map"]) == len(snapshot.tensors) + len(snapshot.skipped)
    assert planned.num_bytes == index["metadata"]["total_size"]
    assert planned.num_shards == len(snapshot.weight_files) > 1
    assert 2e6 < planned.num_bytes < 4e6
    assert planned.num_visual_tensors == sum("visual" in key for key in index["weight_map"])


def contents(folder: Path) -> dict[str, bytes]:
    """Raw key -> bytes, mtp.* included."""
    from safetensors import safe_open

    out = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as stream:
            out |= {key: stream.get_tensor(key).view(-1).float().numpy().tobytes() for key in stream.keys()}  # noqa: SIM118
    return out


def test_a_tensor_depends_on_seed_and_name_alone(tmp_path: Path, tiny_checkpoint: Path) -> None:
    pytest.importorskip("torch")
    synthesise(tmp_path / "small shards", load_config("tiny"), max_shard_bytes=300_000)
    synthesise(tmp_path / "other seed", load_config("tiny"), seed=1)
    first, small, other = (contents(f) for f in (tiny_checkpoint, tmp_path / "small shards", tmp_path / "other seed"))
    assert len(list((tmp_path / "small shards").glob("*.safetensors"))) > 10
    assert small == first
    assert other.keys() == first.keys()
    assert all(other[key] != first[key] for key in first)


def test_the_bytes_are_these_on_every_system() -> None:
    """A golden value: synthetic checkpoints made elsewhere, or by a later version, are the same."""
    block = SyntheticWeights(open_config("tiny"), seed=0).block("lm_head.weight", (512, 96), 0)
    assert block[:4].tolist() == [15790, 48517, 15903, 48554]


def test_blocks_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SyntheticWeights(open_config("tiny"), seed=3)
    for key, shape in (("model.layers.0.linear_attn.in_proj_qkv.weight", (208, 96)), ("lm_head.weight", (512, 96))):
        whole = made.block(key, shape, 0)
        assert whole.size == np.prod(shape)
        with monkeypatch.context() as patch:
            patch.setattr(weights, "BLOCK_VALUES", 1000)
            parts = [made.block(key, shape, index) for index in range(num_blocks(shape))]
        assert len(parts) > 10
        assert np.array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("tied", [False, True])
def test_a_text_only_config_gives_a_text_only_checkpoint(tmp_path: Path, tied: bool) -> None:
    config = {**load_config("tiny")["text_config"], "tie_word_embeddings": tied}
    synthesise(tmp_path / "text", config)
    snapshot = open_snapshot(tmp_path / "text")
    snapshot.check([TEXT])
    keys = {info.raw_key for info in snapshot.tensors.values()}
    assert "model.layers.0.input_layernorm.weight" in keys
    assert ("lm_head.weight" in keys) is not tied
    assert "preprocessor_config.json" not in snapshot.assets and "tokenizer.json" in snapshot.assets


def test_a_tied_vision_language_checkpoint(tmp_path: Path) -> None:
    synthesise(tmp_path / "tied", {**load_config("tiny"), "tie_word_embeddings": True})
    snapshot = open_snapshot(tmp_path / "tied")
    snapshot.check(COMPONENTS)
    assert snapshot.tensors["lm_head.weight"].raw_key == "model.language_model.embed_tokens.weight"


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    synthesise(tmp_path / "out", load_config("tiny"), progress=lambda *state: seen.append(state))
    total = plan(load_config("tiny")).num_bytes
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
    assert seen[-1][:2] == (total, total)
    assert len({key for _, _, key in seen}) == plan(load_config("tiny")).num_tensors


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_or_failed_run_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def stop(done: int, total: int, key: str) -> None:
        if done > total // 2:
            raise error

    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else UsageError) as caught:
        synthesise(tmp_path / "out", load_config("tiny"), progress=stop)
    assert list(tmp_path.iterdir()) == []
    if error is not KeyboardInterrupt:
        assert "No space left on device" in str(caught.value) and str(tmp_path / "out") in str(caught.value)


def test_an_empty_folder_is_used_and_anything_else_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    synthesise(tmp_path / "empty", load_config("tiny"))
    open_snapshot(tmp_path / "empty").check(COMPONENTS)
    with pytest.raises(UsageError, match="exists already"):
        synthesise(tmp_path / "empty", load_config("tiny"))
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="exists already"):
        synthesise(tmp_path / "file", load_config("tiny"))
    with pytest.raises(UsageError, match="cannot be written"):
        synthesise(tmp_path / "file" / "below", load_config("tiny"))
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file"]


def test_space_is_checked_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=50_000_000_000))
    with pytest.raises(UsageError, match=r"needs 55\.60 GB but .* has 50\.00 GB free"):
        synthesise(tmp_path / "a" / "b", load_config("qwen3.8-27b"))
    assert list(tmp_path.iterdir()) == []
