"""Transformers loads the synthetic checkpoint, and nothing in it is dull: every state, feature and logit moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwen_export.checkpoint import open_snapshot

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS = 65
EARLY = 1


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """A model this small gains nothing from threads, and on a busy machine they wait for one another a hundredfold."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Path) -> Any:
    """The tiny model in float32; missing and unexpected keys fail here."""
    loaded, report = transformers.Qwen3_5ForConditionalGeneration.from_pretrained(
        tiny_checkpoint,
        dtype=torch.float32,
        attn_implementation="eager",
        local_files_only=True,
        output_loading_info=True,
    )
    assert not any(report.values()), report
    return loaded.eval()


@pytest.fixture(scope="module")
def prompt() -> Any:
    return torch.randint(0, 448, (1, TOKENS), generator=torch.Generator().manual_seed(0))


def run(model: Any, ids: Any) -> tuple[Any, dict[str, Any]]:
    """Logits of every position, and every state by layer and kind."""
    cache = transformers.DynamicCache(config=model.config.text_config)
    with torch.no_grad():
        logits = model(input_ids=ids, cache=cache, use_cache=True).logits
    states = {}
    for index, layer in enumerate(cache.layers):
        if getattr(layer, "keys", None) is not None:
            states |= {f"{index}.key": layer.keys, f"{index}.value": layer.values}
        else:
            states |= {f"{index}.conv": layer.conv_states[0], f"{index}.recurrent": layer.recurrent_states[0]}
    return logits, states


def test_processors_and_config_load(tiny_checkpoint: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(tiny_checkpoint, local_files_only=True)
    assert type(config).__name__ == "Qwen3_5Config"
    processor = transformers.Qwen2VLImageProcessorPil.from_pretrained(tiny_checkpoint, local_files_only=True)
    vision = config.vision_config
    assert (processor.patch_size, processor.merge_size) == (vision.patch_size, vision.spatial_merge_size)
    image = np.random.default_rng(0).integers(0, 256, (150, 210, 3), dtype=np.uint8)
    made = processor(images=[image], return_tensors="np")
    t, h, w = made["image_grid_thw"][0]
    assert made["pixel_values"].shape == (t * h * w, 3 * 2 * 16 * 16)
    assert h != w and h % 2 == w % 2 == 0
    generation = transformers.GenerationConfig.from_pretrained(tiny_checkpoint, local_files_only=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_checkpoint, local_files_only=True)
    assert tokenizer.convert_ids_to_tokens(generation.eos_token_id) == ["<|im_end|>", "<|endoftext|>"]


def test_logits_span_one_to_ten(model: Any, prompt: Any) -> None:
    logits, _ = run(model, prompt)
    peaks = logits.abs().amax(-1)
    assert torch.isfinite(logits).all()
    assert peaks.min() > 1 and peaks.max() < 10
    assert len(logits.argmax(-1).unique()) > TOKENS / 3


def test_every_state_moves_when_one_early_token_changes(model: Any, prompt: Any) -> None:
    changed = prompt.clone()
    changed[0, EARLY] = (changed[0, EARLY] + 7) % 448
    (logits, before), (other, after) = run(model, prompt), run(model, changed)
    moved = {name: (before[name] - after[name]).abs().max().item() for name in before}
    # The first layer's convolution sees the last tokens alone, whatever the weights: it must not move here.
    assert moved.pop("0.conv") == 0
    assert len(moved) == 15
    assert min(moved.values()) > 1e-2, moved
    assert (logits - other)[0, -1].abs().max() > 1e-2
    changed = prompt.clone()
    changed[0, -2] = (changed[0, -2] + 7) % 448
    assert (before["0.conv"] - run(model, changed)[1]["0.conv"]).abs().max() > 1e-2


def test_recurrent_states_forget_over_tens_of_tokens(tiny_checkpoint: Path) -> None:
    snapshot = open_snapshot(tiny_checkpoint)
    for layer in snapshot.config.text.linear_layers:
        prefix = f"model.language_model.layers.{layer}.linear_attn."
        a_log, dt_bias = (snapshot.array(prefix + name).astype(np.float32) for name in ("A_log", "dt_bias"))
        lifetime = 1 / (np.exp(a_log) * np.log1p(np.exp(dt_bias)))
        assert lifetime.min() > 6 and lifetime.max() < 110


def test_no_tensor_is_neutral(tiny_checkpoint: Path) -> None:
    """No zero, no one, no constant: any weight left out or taken twice changes the result."""
    snapshot = open_snapshot(tiny_checkpoint)
    for key in snapshot.tensors:
        values = snapshot.array(key).astype(np.float32)
        assert values.std() > 1e-2, key
        assert np.abs(values).mean() > 1e-2, key


def features(model: Any, pixels: Any, grids: list[list[int]]) -> Any:
    with torch.no_grad():
        return model.model.visual(pixels, torch.tensor(grids)).pooler_output


def test_features_have_the_spread_of_embeddings_and_see_colour_and_place(model: Any) -> None:
    noise = torch.rand((96 + 24 + 32, 1536), generator=torch.Generator().manual_seed(0)) * 2 - 1
    mixed = features(model, noise, [[1, 8, 12], [1, 4, 6], [2, 4, 4]])
    assert 0.7 < mixed.std() < 1.4
    plain = {}
    for colour in ((1, 1, 1), (-1, -1, -1), (1, -1, -1), (-1, 1, -1)):
        pixels = torch.tensor(colour, dtype=torch.float32)[:, None].expand(3, 512).reshape(1, -1).expand(96, -1)
        plain[colour] = features(model, pixels, [[1, 8, 12]])
        # A blank image: keys are near-identical, yet places differ by the learned positions.
        assert plain[colour].std(0).mean() > 0.1
    means = torch.stack([rows.mean(0) for rows in plain.values()])
    distance = torch.cdist(means, means) + torch.eye(len(means)) * 1e9
    assert distance.min() > 1


def test_rounding_noise_stays_small(model: Any, prompt: Any, tiny_checkpoint: Path) -> None:
    """The parity bars (5e-5, and 1e-5 of the RMS) must be reachable: float32 against float64, with room for two."""
    exact = transformers.Qwen3_5ForConditionalGeneration.from_pretrained(
        tiny_checkpoint, dtype=torch.float64, attn_implementation="eager", local_files_only=True
    ).eval()
    starts = torch.arange(0, 448, 3)[:, None] * torch.tensor([1, 7, 13]) % 448
    for ids in (prompt, starts):
        (logits, states), (wanted, wanted_states) = run(model, ids), run(exact, ids)
        for name, ours, theirs in [("logits", logits, wanted), *((n, states[n], wanted_states[n]) for n in states)]:
            error = ours.double() - theirs.double()
            assert error.abs().max() < 2.5e-5, name
            assert error.square().mean().sqrt() < 3e-6 * theirs.double().square().mean().sqrt(), name
