"""`qwen-export evaluate` on an exported package, with Transformers beside it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from qwen_export.cli.app import app
from qwen_export.errors import UsageError
from qwen_export.evaluate import Ai2d, Reply, package_system, reference_system
from qwen_export.export import export_vlm
from qwen_export.package import open_package
from qwen_export.recipe import Recipe
from qwen_export.runtime.session import Device


@pytest.fixture(scope="session")
def package(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The synthetic checkpoint as a float32 package."""
    folder = tmp_path_factory.mktemp("evaluated") / "pkg"
    export_vlm(tiny_checkpoint, folder, recipe=Recipe(dtype="fp32", target="cpu"))
    return folder


def call(*words: str) -> int:
    try:
        app(words, prog_name="qwen-export")
    except SystemExit as leave:
        return int(leave.code or 0)
    raise AssertionError("the command line always exits")


def test_package_and_reference_answer_alike(
    package: Path, tiny_checkpoint: Path, dataset: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = ["evaluate", "ai2d", str(package), "--data", str(dataset), "--output", str(tmp_path / "out")]
    code = call(*whole, "--indices", "0,4,11", "--json")
    out, err = capfd.readouterr()
    assert code == 0, err
    alone = json.loads(out)
    assert alone["systems"][0]["asked"] == 3 and alone["comparisons"] == []
    assert "ort: 3/3" in err
    assert call(*whole, "--indices", "0,4,11") == 2 and "--resume" in capfd.readouterr().err
    code = call(*whole, "--indices", "0,4,11", "--resume", "--reference", str(tiny_checkpoint), "--json")
    out, err = capfd.readouterr()
    assert code == 0, err
    both = json.loads(out)
    assert [system["name"] for system in both["systems"]] == ["ort", "transformers-fp32"]
    assert both["comparisons"][0]["same_tokens"] == 3
    assert "ort: " not in err, "what is answered is not asked again"
    for system in both["systems"]:
        assert set(system["seconds"]) == {"preprocess", "vision", "prefill", "decode", "total"}
        assert all(spent > 0 for spent in system["seconds"].values())
    code = call("evaluate", "ai2d", "--rescore", str(tmp_path / "out"), "--output", str(tmp_path / "anew"))
    shown = capfd.readouterr().out
    assert code == 0 and "same tokens on 3 of 3" in shown
    first, anew = (json.loads((tmp_path / name / "summary.json").read_text("utf-8")) for name in ("out", "anew"))
    assert first == anew


def test_both_see_the_same_prompt_and_the_same_margins(package: Path, tiny_checkpoint: Path, dataset: Path) -> None:
    data = Ai2d(dataset)
    replies: list[Reply] = []
    for system in (package_system(open_package(package), Device()), reference_system(tiny_checkpoint, dtype="fp32")):
        answerer = system.open()
        replies.append(answerer.answer(data.picture(2), "row 2", data.questions[2].prompt, 5))
        answerer.close()
    ours, theirs = replies
    assert ours.prompt_tokens == theirs.prompt_tokens and ours.tokens == theirs.tokens and ours.text == theirs.text
    assert ours.runners_up == theirs.runners_up and len(ours.margins) == len(ours.tokens) <= 5
    assert ours.margins == pytest.approx(theirs.margins, abs=1e-3)
    assert ours.ended == theirs.ended


@pytest.mark.parametrize(
    "words", [("ai2d",), ("ai2d", "PKG"), ("ai2d", "PKG", "--rescore", "x"), ("mmmu", "PKG", "--data", "x")]
)
def test_what_is_missing_or_too_much_is_said(words: tuple[str, ...], package: Path, tmp_path: Path) -> None:
    given = [str(package) if word == "PKG" else word for word in words]
    assert call("evaluate", *given, "--output", str(tmp_path / "out")) == 2
    assert not (tmp_path / "out").exists()


def test_a_text_only_package_cannot_look_at_pictures(package: Path) -> None:
    opened = open_package(package)
    manifest = replace(opened.manifest, components={"text": opened.manifest.components["decoder"]})
    with pytest.raises(UsageError, match="has no vision encoder"):
        package_system(replace(opened, manifest=manifest), Device())


def test_genai_answers_with_the_same_tokens(package: Path, dataset: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    from qwen_export.evaluate import genai_system
    from qwen_export.genai import add_genai_files

    copy = package.parent / "genai"
    shutil.copytree(package, copy)
    add_genai_files(copy)
    opened, data = open_package(copy), Ai2d(dataset)
    replies = []
    for system in (package_system(opened, Device()), genai_system(opened)):
        answerer = system.open()
        replies.append([answerer.answer(data.picture(i), "x", data.questions[i].prompt, 6) for i in (1, 3)])
        answerer.close()
    for ours, theirs in zip(*replies, strict=True):
        assert ours.tokens == theirs.tokens and ours.ended == theirs.ended and ours.text == theirs.text
        assert ours.margins == pytest.approx(theirs.margins, abs=1e-4)
        assert "vision" not in theirs.seconds
