"""What cannot be judged is refused in one sentence, with exit code 2."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from qwen_export import export_vlm
from qwen_export.checkpoint import load_config
from qwen_export.checkpoint.synth import synthesise
from qwen_export.cli.app import app
from qwen_export.package import open_package
from qwen_export.recipe import Recipe
from qwen_export.verify import graph_runners
from qwen_export.verify.identity import SAMPLE, check_identity


def refused(*line: str | Path) -> str:
    """The one sentence of a refusal."""
    told = CliRunner().invoke(app, ["verify", *map(str, line)])
    assert told.exit_code == 2, told.output
    assert "Traceback" not in told.output
    return " ".join(told.output.split())


def test_a_bf16_package_too_large_for_the_evaluator(packages, tiny_checkpoint: Path, monkeypatch) -> None:
    monkeypatch.setattr(graph_runners, "EVALUATOR_LIMIT", 1000)
    monkeypatch.setattr(graph_runners, "OnnxRuntimeRunner", None)
    assert "no bf16 kernels" in refused(packages("bf16"), "--checkpoint", tiny_checkpoint)
    assert "computes an fp16 package in fp32" in refused(packages("fp16"), "--checkpoint", tiny_checkpoint)


def test_a_provider_that_is_not_there(packages, references) -> None:
    assert "cuda" in refused(packages("fp32"), "--reference", references("fp32"), "--provider", "cuda")


def test_neither_or_both_sides(packages, tiny_checkpoint: Path, references) -> None:
    assert "--checkpoint DIR and --reference FILE" in refused(packages("fp32"))
    both = ("--checkpoint", tiny_checkpoint, "--reference", references("fp32"))
    assert "--checkpoint DIR and --reference FILE" in refused(packages("fp32"), *both)


def test_references_that_do_not_fit(packages, references, tmp_path: Path) -> None:
    assert "There is no reference" in refused(packages("fp32"), "--reference", tmp_path / "none.npz")
    assert "another checkpoint or dtype" in refused(packages("fp16"), "--reference", references("fp32"))
    junk = tmp_path / "junk.npz"
    junk.write_bytes(b"PK junk")
    assert "no whole reference" in refused(packages("fp32"), "--reference", junk)
    np.savez(tmp_path / "other.npz", header=np.frombuffer(b"{}", np.uint8))
    assert "not a reference of this version" in refused(packages("fp32"), "--reference", tmp_path / "other.npz")


def test_packages_that_cannot_be_opened(references, tiny_checkpoint: Path, tmp_path: Path) -> None:
    assert "no package" in refused(tmp_path / "none", "--reference", references("fp32"))
    export_vlm(tiny_checkpoint, tmp_path / "graphs", recipe=Recipe(dtype="fp32"), graph_only=True)
    assert "graph-only" in refused(tmp_path / "graphs", "--checkpoint", tiny_checkpoint)


def test_a_checkpoint_the_package_did_not_come_from(packages, tmp_path: Path) -> None:
    synthesise(tmp_path / "seed", load_config("tiny"), seed=1)
    assert "is not the checkpoint" in refused(packages("fp32"), "--checkpoint", tmp_path / "seed")
    config = load_config("tiny")
    config["text_config"]["intermediate_size"] += 32
    synthesise(tmp_path / "shape", config)
    assert "is not the checkpoint" in refused(packages("fp32"), "--checkpoint", tmp_path / "shape")
    assert "none" in refused(packages("fp32"), "--checkpoint", tmp_path / "none")


def test_one_changed_tensor_is_a_finding_and_deep_sees_them_all(
    packages, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    from qwen_export.checkpoint import open_snapshot

    copy = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoint, copy)
    package, snapshot = open_package(packages("fp32")), open_snapshot(copy)
    info = snapshot.tensors["model.language_model.layers.5.mlp.up_proj.weight"]
    with info.file.open("r+b") as file:
        file.seek(info.start + 10)
        byte = file.read(1)
        file.seek(info.start + 10)
        file.write(bytes([byte[0] ^ 1]))
    found = check_identity(package, snapshot, deep=True)
    assert found.wrong_tensors == (info.key,) and not found.passed
    assert found.tensors_checked == found.tensors_known > SAMPLE
    assert info.key in found.findings[0]
    sampled = check_identity(package, open_snapshot(tiny_checkpoint))
    assert sampled.passed and sampled.tensors_checked == SAMPLE


def test_a_report_that_cannot_be_written(packages, references, tmp_path: Path) -> None:
    line = (packages("fp32"), "--reference", references("fp32"), "--report", tmp_path / "no" / "report.html")
    assert "cannot be written" in refused(*line)
