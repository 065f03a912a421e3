"""The reference is Transformers: all at once or layer by layer, rounded as the package stores its weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from qwen_export.checkpoint import open_snapshot
from qwen_export.package import open_package
from qwen_export.verify.cases import Case, CaseMaker, plans
from qwen_export.verify.reference import ReferenceModel, best, run_case
from qwen_export.verify.reference_file import PEER, TRUTH, Reference
from qwen_export.verify.reference_weights import ReferenceWeights, stored_rounding


@pytest.fixture(scope="module")
def mixed(tiny_config, tiny_checkpoint: Path) -> Case:
    plan = next(plan for plan, _ in plans("quick") if plan.name == "image-and-video")
    return CaseMaker(tiny_config, tiny_checkpoint).make(plan, 0)


@pytest.fixture(scope="module")
def whole(tiny_checkpoint: Path) -> ReferenceModel:
    return ReferenceModel(open_snapshot(tiny_checkpoint), "float32", {})


def test_it_is_transformers_own_model_bit_for_bit(whole, mixed: Case, tiny_upstream, tiny_config) -> None:
    found = run_case(whole, mixed)
    pixels = {item.kind: torch.from_numpy(item.pixel_values) for item in mixed.media}
    grids = {kind: torch.from_numpy(mixed.grids(kind)) for kind in ("image", "video")}
    ids = torch.from_numpy(mixed.input_ids)
    kinds = (ids == tiny_config.image_token_id).int() + 2 * (ids == tiny_config.video_token_id).int()
    with torch.no_grad():
        # no positions given: Transformers finds its own
        out = tiny_upstream(
            input_ids=ids,
            mm_token_type_ids=kinds,
            attention_mask=torch.from_numpy(mixed.mask),
            pixel_values=pixels["image"],
            image_grid_thw=grids["image"],
            pixel_values_videos=pixels["video"],
            video_grid_thw=grids["video"],
        )
    assert np.array_equal(found["logits"], out.logits.numpy()[:, list(mixed.positions)])
    image, video = (torch.cat(list(o.pooler_output)) for o in (out.image_outputs, out.video_outputs))
    assert np.array_equal(found["image_features"], torch.cat([image, video]).numpy())
    assert found["tokens"].shape == (1, mixed.steps) and (found["margins"] > 0).all()
    assert {"prompt/0.conv_state", "end/3.key", "hidden/7", "vision/2", "step_logits"} <= set(found)


def test_layer_by_layer_gives_the_same(whole, mixed: Case, tiny_checkpoint: Path) -> None:
    lean = ReferenceModel(open_snapshot(tiny_checkpoint), "float32", {}, budget=0)
    assert all(parameter.is_meta for parameter in lean.model.parameters()), "no weight is held between calls"
    one, two = run_case(whole, mixed), run_case(lean, mixed)
    assert set(one) == set(two)
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_float64_is_float64_throughout(whole, mixed: Case, tiny_checkpoint: Path) -> None:
    double = ReferenceModel(open_snapshot(tiny_checkpoint), "float64", {})
    seen: set[torch.dtype] = set()
    hooks = [(layer, lambda m, a, out: seen.add(out.dtype)) for layer in double.language.layers]
    with double.watched(hooks):
        truth = run_case(double, mixed)
    assert seen == {torch.float64}
    near = run_case(whole, mixed, truth["tokens"])
    errors = [np.abs(truth[name] - near[name]).max() for name in ("logits", "image_features", "end/6.recurrent_state")]
    assert all(0 < error < 2e-5 for error in errors)


def test_states_of_the_prompt_are_not_overwritten_by_the_steps(whole, mixed: Case) -> None:
    found = run_case(whole, mixed)
    assert not np.array_equal(found["prompt/0.conv_state"], found["end/0.conv_state"])
    assert not np.array_equal(found["prompt/0.recurrent_state"], found["end/0.recurrent_state"])


def test_the_truth_has_exactly_the_stored_values(packages, tiny_checkpoint: Path) -> None:
    package, snapshot = open_package(packages("fp16")), open_snapshot(tiny_checkpoint)
    rounded = stored_rounding({name: package.record(name).bindings for name in package.components})
    for key, info in snapshot.tensors.items():
        if key.endswith(("A_log", "dt_bias", "pos_embed.weight")) or ("language" in key and "norm" in key):
            assert key not in rounded, f"{key} is a float32 island"
        elif len(info.shape) == 2:
            assert rounded[key] == "float16", key
    weights = ReferenceWeights(snapshot, torch.float32, rounded).named(set(snapshot.tensors), is_text=False)
    matrix, island = (f"model.language_model.layers.0.{name}" for name in ("mlp.up_proj.weight", "linear_attn.A_log"))
    stored = snapshot.array(matrix).astype(np.float16).astype(np.float32)
    assert np.array_equal(weights[matrix].numpy(), stored)
    assert np.array_equal(weights[island].numpy(), snapshot.array(island).astype(np.float32))


def test_an_fp32_package_rounds_nothing(packages) -> None:
    package = open_package(packages("fp32"))
    assert stored_rounding({name: package.record(name).bindings for name in package.components}) == {}


def test_best_gives_token_and_lead() -> None:
    token, lead = best(np.array([[0.0, 3.0, 1.0], [5.0, 4.5, 1.0]]))
    assert token.tolist() == [1, 0] and lead.tolist() == [2.0, 0.5]


def test_a_reference_file_keeps_both_sides(references, tmp_path: Path) -> None:
    file = Reference(references("fp32"))
    assert file.cases == ("text#0", "sliced#0", "padded#0", "unequal-images#0")
    assert file.has_inside and file.facts["truth"] == "float64"
    truth, peer = (file.get("text#0", side, "logits") for side in (TRUTH, PEER))
    assert truth.shape == peer.shape and 0 < np.abs(truth - peer).max() < 1e-4
    file.close()
    cut = tmp_path / "cut.npz"
    shutil.copy(references("fp32"), cut)
    cut.write_bytes(cut.read_bytes()[:-1000])
    from qwen_export.errors import UsageError

    with pytest.raises(UsageError, match="no whole reference"):
        Reference(cut)
