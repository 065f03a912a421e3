"""Packages as they are exported pass: fp32 on ONNX Runtime, half precision in onnx's evaluator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qwen_export import export_text, export_vlm
from qwen_export.cli.app import app
from qwen_export.recipe import Recipe
from qwen_export.verify import collect, verify
from qwen_export.verify.bisect import SINGLE_STEP
from qwen_export.verify.verdict import MIN_CASES
from tests.verify.few_cases import few_plans

KINDS = ("image features", "embeddings", "conv state", "recurrent state", "key", "value", "logits")


def test_fp32_passes_within_5e_5(packages, tiny_checkpoint: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    line = ["verify", str(packages("fp32")), "--checkpoint", str(tiny_checkpoint), "--report", str(page), "--json"]
    told = CliRunner().invoke(app, line)
    assert told.exit_code == 0, told.output
    document = json.loads(told.stdout)
    assert len(document["cases"]) >= MIN_CASES and not document["not_run"]
    assert document["hashes"] == {"files": 13, "tensors": 64, "findings": []}
    for row in document["tensors"]:
        if row["kind"] not in ("hidden", "vision", "key"):
            assert row["max_abs"] <= 5e-5, row
        assert row["relative_rms"] <= 1e-5 and row["not_finite"] == 0, row
    limits = {check["name"]: check["limit"] for check in document["checks"]}
    assert limits["logits, largest difference"] == 5e-5
    assert all(run["same"] == run["steps"] for run in document["free_runs"])
    rows = document["bisect"]["rows"]
    assert len(rows) > 600 and not any(row["wrong"] for row in rows)
    assert page.stat().st_size < 2_000_000


@pytest.mark.parametrize("dtype", ["fp16", pytest.param("bf16", marks=pytest.mark.full)])
def test_half_is_as_near_to_the_truth_as_transformers(dtype: str, packages, tiny_checkpoint: Path) -> None:
    report = verify(packages(dtype), checkpoint=tiny_checkpoint)
    assert report.passed, [str(check) for check in report.failures]
    assert len(report.cases) >= MIN_CASES
    ratios = {check.name.removesuffix(", error ratio"): check for check in report.checks if "error ratio" in check.name}
    layers = [f"layer output of layer {i}" for i in range(8)] + [f"vision block output of block {i}" for i in range(3)]
    for name in (*KINDS, *layers):
        assert ratios[name].value <= 1.05, str(ratios[name])
        assert ratios[name].limit == 1.05
    assert "reference evaluator" in report.computed_by
    assert not report.bisect.faults and not report.bisect.problems


WITHOUT_TORCH = """
import sys
for name in ("torch", "accelerate", "onnxscript"):
    sys.modules[name] = None
from pathlib import Path
from qwen_export.verify import verify
report = verify(sys.argv[1], reference=Path(sys.argv[2]), report=Path(sys.argv[3]))
assert report.passed and report.checkpoint is None and report.identity.tensors_checked == 0
assert not any(name == "transformers" or name.startswith("transformers.models") for name in sys.modules)
"""


def test_a_saved_reference_needs_no_checkpoint_no_torch_no_transformers(packages, references, tmp_path: Path) -> None:
    line = [sys.executable, "-c", WITHOUT_TORCH, packages("fp32"), references("fp32"), tmp_path / "report.html"]
    done = subprocess.run(list(map(str, line)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_static_cache_and_single_token_graph(tiny_checkpoint: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(collect, "plans", few_plans)
    recipe = Recipe(dtype="fp32", kv_cache="static", max_length=130, decode_graph=True)
    export_vlm(tiny_checkpoint, tmp_path / "static", recipe=recipe)
    report = verify(tmp_path / "static", checkpoint=tiny_checkpoint)
    assert report.passed, [str(check) for check in report.failures]
    assert report.not_run == {"sliced#0": "172 tokens do not fit the static cache of 130"}
    single = [row for row in report.bisect.rows if row.component == SINGLE_STEP]
    assert len(single) > 200 and {row.call for row in single} == {"step", "quiet-step"}


def test_a_single_component_is_judged_alone(tiny_checkpoint: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(collect, "plans", few_plans)
    export_vlm(tiny_checkpoint, tmp_path / "part", recipe=Recipe(dtype="fp32"), components=["decoder"])
    report = verify(tmp_path / "part", checkpoint=tiny_checkpoint, save_reference=tmp_path / "kept.npz")
    assert report.passed, [str(check) for check in report.failures]
    kinds = {tensor.kind for tensor in report.ledger.tensors()}
    assert kinds == {"logits", "hidden", "key", "value", "conv_state", "recurrent_state"}
    assert (tmp_path / "kept.npz").stat().st_size > 0


def test_text_only_lists_what_it_did_not_run(tiny_checkpoint: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(collect, "plans", few_plans)
    export_text(tiny_checkpoint, tmp_path / "text", recipe=Recipe(dtype="fp32", logits="all"))
    report = verify(tmp_path / "text", checkpoint=tiny_checkpoint)
    assert report.passed, [str(check) for check in report.failures]
    assert report.not_run == {"unequal-images#0": "the package takes text only"}
