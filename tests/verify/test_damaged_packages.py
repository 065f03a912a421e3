"""A damaged package fails with exit code 1 and no traceback, and the place of the damage is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qwen_export.cli.app import app
from qwen_export.verify import verify
from tests.verify import damage
from tests.verify.damage import Damaged


@dataclass(frozen=True)
class Damage:
    """What is done, and where it must be found."""

    name: str
    do: Callable[[Damaged], None]
    stage: str
    place: str
    node: str


DAMAGES = [
    Damage("exponent", damage.flip_top_exponent_bit, "layers.2", "up_proj", "layers.2.MatMul_4"),
    Damage(
        "epsilon",
        partial(damage.drop_epsilon, component="decoder", node_name="layers.2.RMSNormalization_1"),
        "layers.2", "post_attention_layernorm", "layers.2.RMSNormalization_1",
    ),
    Damage(
        "inner epsilon",
        partial(damage.drop_epsilon, component="decoder", node_name="layers.4.step.RMSNormalization_0"),
        "layers.4", "mixer", "layers.4.If_0",
    ),
    Damage(
        "vision epsilon",
        partial(damage.drop_epsilon, component="vision_encoder", node_name="blocks.1.LayerNormalization_0"),
        "blocks.1", "norm1", "blocks.1.LayerNormalization_0",
    ),
    Damage("colours", damage.swap_red_and_blue, "prelude", "patch_embed", "prelude.Gemm_0"),
    Damage("positions", damage.shift_one_position, "prelude", "cos", "prelude.Cos_0"),
    Damage("grids", damage.swap_height_and_width, "prelude", "hidden", "prelude.Gather_99"),
    Damage("chunks", damage.forget_between_chunks, "layers.1", "mixer", "layers.1.If_0"),
]  # fmt: skip


@pytest.mark.parametrize("one", DAMAGES, ids=lambda one: one.name)
def test_damage_is_found_and_placed(one: Damage, packages, references, tmp_path: Path) -> None:
    package = Damaged(packages("fp32"), tmp_path / "package")
    one.do(package)
    package.rehash()
    report = verify(package.folder, reference=references("fp32"), bisect=True)
    assert not report.passed
    assert report.identity.passed
    first = report.bisect.first
    assert first is not None
    assert (first.stage, first.place) == (one.stage, one.place), str(report.bisect)
    assert one.node in first.operations


def test_a_wrong_hash_is_one_more_finding(packages, references, tmp_path: Path) -> None:
    package = Damaged(packages("fp32"), tmp_path / "package")
    damage.flip_top_exponent_bit(package)
    report = verify(package.folder, reference=references("fp32"))
    assert report.identity.wrong_files == ("decoder/model.onnx.data",)
    assert len(report.cases) == 4 and not report.not_run
    assert any("layer output of layer 2" in check.name for check in report.failures)
    assert report.bisect.first.stage == "layers.2"


def test_a_wrong_hash_alone_fails(packages, references, tmp_path: Path) -> None:
    package = Damaged(packages("fp32"), tmp_path / "package")
    template = package.folder / "chat_template.jinja"
    text = template.read_text(encoding="utf-8")
    template.write_text(text.replace("e", "E", 1), encoding="utf-8")
    report = verify(package.folder, reference=references("fp32"))
    assert not report.failures
    assert report.identity.wrong_files == ("chat_template.jinja",)
    assert not report.passed


def test_the_command_ends_with_1_and_no_traceback(packages, references, tmp_path: Path) -> None:
    package = Damaged(packages("fp32"), tmp_path / "package")
    damage.shift_one_position(package)
    package.rehash()
    page = tmp_path / "report.html"
    line = ["verify", str(package.folder), "--reference", str(references("fp32")), "--bisect", "--report", str(page)]
    told = CliRunner().invoke(app, line)
    assert told.exit_code == 1
    assert "Traceback" not in told.output
    assert "prelude: cos is wrong" in " ".join(told.output.split())
    assert "FAILED" in page.read_text(encoding="utf-8")
    asked = CliRunner().invoke(app, [*line, "--json"])
    assert asked.exit_code == 1
    document = json.loads(asked.stdout)
    assert document["passed"] is False and document["bisect"]["rows"]


def test_overflow_in_half_names_component_and_first_tensor(packages, references, tmp_path: Path) -> None:
    package = Damaged(packages("fp16"), tmp_path / "package")
    damage.scale_weight(package, "layers.4.down_proj", 30000.0)
    package.rehash()
    report = verify(package.folder, reference=references("fp16"))
    assert not report.passed
    check = next(check for check in report.checks if check.name == "numbers that are not finite")
    assert not check.passed
    assert "decoder" in check.note and "layer output of layer 4" in check.note
    assert report.bisect.first.stage == "layers.4"
