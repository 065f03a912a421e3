"""What a snapshot says about a checkpoint: keys under every prefix, tied heads, the skip list, data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from qwen_export.checkpoint import expected_tensors, open_snapshot
from qwen_export.contract import COMPONENTS, DECODER, TEXT
from qwen_export.errors import CheckpointError
from tests.checkpoint.checkpoint_workshop import Stored, Workshop

EMBED, HEAD = "model.language_model.embed_tokens.weight", "lm_head.weight"


def test_the_tiny_checkpoint(tiny_checkpoint: Path) -> None:
    snapshot = open_snapshot(str(tiny_checkpoint))
    snapshot.check(COMPONENTS)
    snapshot.check([TEXT])
    assert {key: info.shape for key, info in snapshot.tensors.items()} == expected_tensors(snapshot.config, COMPONENTS)
    assert snapshot.skipped and all(key.startswith("mtp.") for key in snapshot.skipped)
    assert len(snapshot.weight_files) > 1
    assert snapshot.source.name == "model.safetensors.index.json"
    assert snapshot.config_sha256 == hashlib.sha256((tiny_checkpoint / "config.json").read_bytes()).hexdigest()
    assert {"config.json", "tokenizer.json", "chat_template.jinja", "preprocessor_config.json"} <= set(snapshot.assets)


def test_arrays_are_the_bytes_that_safetensors_reads(tiny_checkpoint: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors import safe_open

    snapshot = open_snapshot(tiny_checkpoint)
    for key in (EMBED, HEAD, "model.visual.patch_embed.proj.weight", "model.language_model.layers.0.linear_attn.A_log"):
        info = snapshot.tensors[key]
        array = snapshot.array(key)
        assert array.dtype == ml_dtypes.bfloat16 and array.shape == info.shape
        assert not array.flags.writeable
        with safe_open(info.file, framework="pt") as file:
            theirs = file.get_tensor(info.raw_key).view(torch.uint16).numpy()
        assert np.array_equal(array.view(np.uint16), theirs)


def test_an_unknown_key_has_no_array(tiny_checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match=r"lists no tensor model\.nothing"):
        open_snapshot(tiny_checkpoint).array("model.nothing")


def inner_causal_model(key: str) -> str:
    if key == HEAD:
        return "language_model.lm_head.weight"
    return key.replace("model.language_model.", "language_model.model.").replace("model.visual.", "visual.")


def without_head(key: str) -> str:
    return key.removeprefix("model.")


PREFIXES: dict[str, Callable[[str], str]] = {
    "official": lambda key: key,
    "causal model inside": inner_causal_model,
    "saved without the outer head": without_head,
}
TEXT_PREFIXES: dict[str, Callable[[str], str]] = {
    "text-only": lambda key: key.replace("model.language_model.", "model."),
    "bare": lambda key: key.replace("model.language_model.", ""),
    **PREFIXES,
}


@pytest.mark.parametrize("change", PREFIXES.values(), ids=list(PREFIXES))
def test_every_prefix_of_a_vision_language_checkpoint(
    tmp_path: Path, workshop: Workshop, tiny_checkpoint: Path, change: Callable[[str], str]
) -> None:
    wanted = open_snapshot(tiny_checkpoint)
    workshop.rename(change)
    snapshot = open_snapshot(workshop.write(tmp_path))
    snapshot.check(COMPONENTS)
    assert snapshot.tensors.keys() == wanted.tensors.keys()
    assert snapshot.tensors[EMBED].raw_key == change(EMBED)
    assert snapshot.array(EMBED).tobytes() == wanted.array(EMBED).tobytes()


@pytest.mark.parametrize("change", TEXT_PREFIXES.values(), ids=list(TEXT_PREFIXES))
@pytest.mark.parametrize("model_type", ["qwen3_5_text", "qwen3_5_vl_text"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_every_prefix_and_config_of_a_text_only_checkpoint(
    tmp_path: Path, workshop: Workshop, change: Callable[[str], str], model_type: str, wrapped: bool
) -> None:
    text = {**workshop.config["text_config"], "model_type": model_type}
    workshop.config = {"model_type": model_type, "text_config": text} if wrapped else text
    workshop.tensors = {key: tensor for key, tensor in workshop.tensors.items() if "visual" not in key}
    workshop.rename(change)
    snapshot = open_snapshot(workshop.write(tmp_path))
    snapshot.check([TEXT])
    assert snapshot.config.vision is None
    assert snapshot.tensors.keys() == expected_tensors(snapshot.config, [TEXT]).keys()


def test_mtp_is_skipped_by_name(tmp_path: Path, workshop: Workshop) -> None:
    for key in ("mtp.fc.weight", "language_model.mtp.norm.weight"):
        workshop.tensors[key] = Stored("BF16", [1], b"00")
    snapshot = open_snapshot(workshop.write(tmp_path))
    snapshot.check(COMPONENTS)
    assert snapshot.skipped == ("language_model.mtp.norm.weight", "mtp.fc.weight")


def test_two_spellings_of_one_tensor(tmp_path: Path, workshop: Workshop) -> None:
    workshop.tensors["model.norm.weight"] = workshop.tensors["model.language_model.norm.weight"]
    with pytest.raises(CheckpointError, match=r"are both model\.language_model\.norm\.weight"):
        open_snapshot(workshop.write(tmp_path))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("absent", "present"), [(HEAD, EMBED), (EMBED, HEAD)])
def test_a_tied_head_has_the_bytes_of_the_embedding(
    tmp_path: Path, workshop: Workshop, absent: str, present: str, nested: bool
) -> None:
    del workshop.tensors[absent]
    del workshop.config["tie_word_embeddings"]
    workshop.config["text_config"]["tie_word_embeddings"] = True
    if not nested:
        workshop.config["tie_word_embeddings"] = True
    snapshot = open_snapshot(workshop.write(tmp_path))
    snapshot.check(COMPONENTS)
    tied, source = snapshot.tensors[absent], snapshot.tensors[present]
    assert (tied.key, tied.raw_key, tied.start, tied.stop) == (absent, present, source.start, source.stop)
    assert snapshot.array(absent).tobytes() == snapshot.array(present).tobytes()


def test_a_tied_config_with_a_head_of_its_own_keeps_it(tmp_path: Path, workshop: Workshop) -> None:
    workshop.config["tie_word_embeddings"] = True
    snapshot = open_snapshot(workshop.write(tmp_path))
    snapshot.check(COMPONENTS)
    assert snapshot.array(HEAD).tobytes() == workshop.tensors[HEAD].data != workshop.tensors[EMBED].data


def test_an_untied_config_without_a_head(tmp_path: Path, workshop: Workshop) -> None:
    del workshop.tensors[HEAD]
    snapshot = open_snapshot(workshop.write(tmp_path))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing: .*model\.safetensors .*not tied"):
        snapshot.check([DECODER])
