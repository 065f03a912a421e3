"""The vision encoder against Transformers in float32: the wrapper run eagerly, and its graph on ONNX Runtime."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
import torch

from qwen_export.contract import VISION_ENCODER, vision_encoder_contract
from qwen_export.passes.pipeline import lower
from qwen_export.recipe import Recipe
from qwen_export.tracing import build_graph
from qwen_export.tracing.trace import trace, without_weight_data
from qwen_export.wrappers import vision_upstream as upstream
from qwen_export.wrappers.vision_encoder import VisionBlock, VisionEncoderWrapper, vision_shared_specs
from tests.bound_graph import GraphSession, serialize
from tests.vision_cases import GRIDS, Grids, feature_ranges, grid_array, patch_rows


def recipe(target: str, dtype: str = "fp32") -> Recipe:
    """Blocks of 100 queries for the CPU: all but the smallest cases have several, the last one short."""
    return Recipe(dtype=dtype, target=target, attention_block=100)


RECIPES = {target: recipe(target) for target in ("cuda", "cpu")}
CUDA = RECIPES["cuda"]
MAX_ABS, RELATIVE_RMS = 5e-5, 1e-5


@pytest.fixture(scope="module")
def wrapper(tiny_config, tiny_upstream) -> VisionEncoderWrapper:
    return upstream.whole_vision_encoder(tiny_config, CUDA, tiny_upstream.state_dict())


def pixels(config, grids: Grids) -> np.ndarray:
    return patch_rows(grids, config.vision.patch_width)


def reference(tiny_upstream, rows: np.ndarray, grids: Grids) -> np.ndarray:
    with torch.no_grad():
        out = tiny_upstream.model.visual(torch.from_numpy(rows), torch.from_numpy(grid_array(grids)))
    return out.pooler_output.numpy()


def agree(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape and np.isfinite(found).all()
    error = found.astype(np.float64) - wanted
    assert np.abs(error).max() <= MAX_ABS
    assert np.sqrt((error**2).mean() / (wanted.astype(np.float64) ** 2).mean()) <= RELATIVE_RMS


def features(tiny_graphs, recipe: Recipe, rows: np.ndarray, grids: Grids) -> np.ndarray:
    feeds = {"pixel_values": rows, "image_grid_thw": grid_array(grids)}
    return tiny_graphs.session(VISION_ENCODER, recipe).run(feeds)["image_features"]


@pytest.mark.parametrize("case", GRIDS)
def test_wrapper_equals_transformers(case, wrapper, tiny_config, tiny_upstream):
    rows, grids = pixels(tiny_config, GRIDS[case]), GRIDS[case]
    with torch.no_grad():
        found = wrapper(torch.from_numpy(rows), torch.from_numpy(grid_array(grids)))
    agree(found.numpy(), reference(tiny_upstream, rows, grids))


@pytest.mark.parametrize("target", RECIPES)
@pytest.mark.parametrize("case", GRIDS)
def test_graph_equals_transformers(case, target, tiny_graphs, tiny_config, tiny_upstream):
    rows = pixels(tiny_config, GRIDS[case])
    wanted = reference(tiny_upstream, rows, GRIDS[case])
    agree(features(tiny_graphs, RECIPES[target], rows, GRIDS[case]), wanted)


@pytest.mark.parametrize("case", [name for name in GRIDS if name != "a large picture"])
def test_learned_positions_equal_transformers_to_the_last_bit(case, wrapper, tiny_upstream):
    from transformers.vision_utils import get_vision_interpolation_indices_and_weights

    visual, grid = tiny_upstream.model.visual, torch.from_numpy(grid_array(GRIDS[case]))
    indices, weights = get_vision_interpolation_indices_and_weights(
        grid, visual.num_grid_per_side, mode="bilinear", align_corners=True, spatial_merge_size=2
    )
    wanted = (visual.pos_embed(indices) * weights[:, :, None]).sum(1)
    place, extent, *_ = torch.ops.qwen_export.vision_plan(torch.zeros(len(indices), 1), grid, 2, 0)
    assert torch.equal(wrapper.prelude.learned_positions(place.float(), extent), wanted)


@pytest.mark.parametrize("target", RECIPES)
def test_each_segment_attends_only_to_itself(target, tiny_graphs, tiny_config):
    grids = GRIDS["picture, video, picture"]
    rows = pixels(tiny_config, grids)
    before = features(tiny_graphs, RECIPES[target], rows, grids)
    for segment in feature_ranges(grids):
        changed = rows.copy()
        changed[segment.start * 4 : segment.stop * 4] += 1.0
        after = features(tiny_graphs, RECIPES[target], changed, grids)
        others = np.ones(len(before), dtype=bool)
        others[segment] = False
        np.testing.assert_array_equal(after[others], before[others])
        assert np.abs(after[segment] - before[segment]).max() > 1e-2


def test_pictures_keep_their_order(tiny_graphs, tiny_config):
    grids = GRIDS["videos and pictures"]
    rows = pixels(tiny_config, grids)
    begin, alone = 0, []
    for grid in grids:
        end = begin + int(np.prod(grid))
        alone.append(features(tiny_graphs, CUDA, rows[begin:end], [grid]))
        begin = end
    np.testing.assert_allclose(features(tiny_graphs, CUDA, rows, grids), np.concatenate(alone), atol=MAX_ABS)


@pytest.mark.parametrize("target", RECIPES)
@pytest.mark.parametrize(
    ("rows", "grids"),
    [(20, [[1, 4, 6]]), (28, [[1, 4, 6]]), (0, [[1, 4, 6]]), (24, []), (0, [])],
    ids=["too few rows", "too many rows", "no rows", "no grids", "nothing"],
)
def test_rows_that_are_not_those_of_the_grids_end_in_an_error(rows, grids, target, tiny_graphs, tiny_config):
    given = np.zeros((rows, tiny_config.vision.patch_width), np.float32)
    with pytest.raises(Exception, match=r"returned while running (Add|Attention|Scan) node"):
        features(tiny_graphs, RECIPES[target], given, grids)


def test_half_precision_graph_runs(tiny_graphs, tiny_config, tiny_upstream):
    """ONNX Runtime's CPU provider computes most of it in float32: a check of types, not of half precision."""
    grids = GRIDS["picture, video, picture"]
    rows = pixels(tiny_config, grids)
    wanted = reference(tiny_upstream, rows, grids)
    for target in RECIPES:
        found = features(tiny_graphs, recipe(target, "fp16"), rows, grids)
        assert found.dtype == np.float16
        assert np.sqrt(((found - wanted) ** 2).mean() / (wanted**2).mean()) < 5e-3


@pytest.mark.parametrize("target", RECIPES)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_nodes_are_few_and_none_is_a_loop_over_rows(dtype, target, tiny_graphs):
    """27 blocks of this size and both ends stay below 750 nodes in half precision."""
    graph = tiny_graphs.built(VISION_ENCODER, recipe(target, dtype)).model.graph
    everything = list(ir.traversal.RecursiveGraphIterator(graph))
    operators = Counter(node.op_type for node in everything)
    assert not set(operators) & {"Loop", "If", "ScatterND", "NonZero", "SplitToSequence", "SequenceAt"}
    count = Counter(node.name.split(".")[0] for node in graph)
    blocks = operators["LayerNormalization"] // 2
    assert operators["Attention"] == blocks and operators["Scan"] == (blocks if target == "cpu" else 0)
    extra = 0 if dtype == "fp32" else 8
    assert count["blocks"] == blocks * (16 + extra)
    assert count["prelude"] <= (100 if target == "cpu" else 86) and count["merger"] <= 8


@pytest.mark.parametrize("target", RECIPES)
def test_no_value_has_rows_times_rows_elements(target, tiny_graphs, tiny_config, tiny_upstream):
    built = tiny_graphs.built(VISION_ENCODER, RECIPES[target])
    model = built.model.clone()
    model.graph.outputs.extend(v for node in model.graph for v in node.outputs if not v.is_graph_output())
    session = GraphSession(serialize(model, built.bindings, tiny_upstream.state_dict()), optimise=False)
    grids = [[1, 40, 30]]
    values = session.run({"pixel_values": pixels(tiny_config, grids), "image_grid_thw": grid_array(grids)})
    assert len(values) > 100
    largest = max(values, key=lambda name: values[name].size)
    # the widest honest value is a pixel row
    assert values[largest].size <= 1200 * tiny_config.vision.patch_width < 2 * 1200 * 1200, largest


def test_sample_sizes_do_not_matter(tiny_config, tiny_graphs):
    sizes = {"num_patches": 40, "num_media": 3, "query_blocks": 5, "block_slots": 11}
    other = build_graph(VISION_ENCODER, tiny_config, CUDA, sizes=sizes).model.graph
    graph = tiny_graphs.built(VISION_ENCODER, CUDA).model.graph
    assert [node.op_type for node in other] == [node.op_type for node in graph]


def test_declared_values_between_the_pieces_are_what_the_prelude_gives(tiny_config, tiny_upstream):
    for target in RECIPES:
        whole = upstream.whole_vision_encoder(tiny_config, recipe(target), tiny_upstream.state_dict())
        grids = GRIDS["two unequal pictures"]
        rows = torch.from_numpy(pixels(tiny_config, grids))
        _, *shared = whole.prelude(rows, torch.from_numpy(grid_array(grids)))
        sizes: dict[str, int] = {}
        for spec, value in zip(vision_shared_specs(tiny_config, recipe(target)), shared, strict=True):
            assert str(value.dtype) == f"torch.{spec.dtype}" and value.ndim == len(spec.shape), spec.name
            for axis, length in zip(spec.shape, value.shape, strict=True):
                assert length == (axis if isinstance(axis, int) else sizes.setdefault(axis, length)), spec.name


def test_a_parameter_nobody_reads_is_refused(tiny_config):
    from qwen_export.errors import UpstreamChanged

    parameters = upstream.meta_vision_block(tiny_config) | {"attn.q_norm.weight": torch.empty(4, device="meta")}
    with pytest.raises(UpstreamChanged, match=r"attn\.q_norm\.weight"):
        VisionBlock(parameters, 0, tiny_config, CUDA)


@pytest.mark.parametrize("target", RECIPES)
def test_stamped_graph_equals_the_whole_trace(target, tiny_graphs, tiny_config, tiny_upstream):
    tensors = {name: value.to("meta") for name, value in tiny_upstream.state_dict().items()}
    whole = upstream.whole_vision_encoder(tiny_config, recipe(target), tensors)
    contract = vision_encoder_contract(tiny_config, "float32")
    model = trace(whole, contract.inputs, ["image_features"])
    bindings, constants = {}, {}
    for name, piece in whole.named_modules():
        bindings |= {f"{name}.{weight}": binding for weight, binding in getattr(piece, "bindings", {}).items()}
        constants |= {f"{name}.{buffer}": value for buffer, value in getattr(piece, "constants", {}).items()}
    without_weight_data(model, bindings, constants)
    lower(model, recipe(target))
    session = GraphSession(serialize(model, bindings, tiny_upstream.state_dict()))
    for case in ("one picture", "videos and pictures", "larger than the position table"):
        grids = GRIDS[case]
        rows = pixels(tiny_config, grids)
        [traced] = session.run({"pixel_values": rows, "image_grid_thw": grid_array(grids)}).values()
        np.testing.assert_array_equal(traced, features(tiny_graphs, recipe(target), rows, grids))
