"""genai-check says yes to a right package and no, with the reason, to files that GenAI itself would take."""

from __future__ import annotations

import json
import re

import pytest

from qwen_export.errors import PackageError, UsageError
from qwen_export.export import export_vlm
from qwen_export.genai import add_genai_files, check_genai
from qwen_export.recipe import Recipe
from qwen_export.runtime.genai import CONFIG_FILE, Feeder
from tests.genai.altered_package import replace


def test_a_right_package_passes(genai_package):
    report = check_genai(genai_package, threads=1)
    assert report.ok and not report.findings
    assert [case.name for case in report.cases][:2] == ["text, until it ends", "text"]
    assert len(report.cases) == 6
    assert all(len(case.found) == 16 for case in report.cases[1:])
    assert all(case.logit_error <= 1e-6 for case in report.cases)
    assert "6 prompts answered as by run" in report.headline
    # GenAI's own resize is off on one of the two pictures, and said to be
    assert any("use the helper" in note for note in report.notes)
    assert json.dumps(report.to_dict())


def test_a_right_text_only_package_passes(text_package):
    report = check_genai(text_package, threads=1, new_tokens=4)
    assert report.ok and len(report.cases) == 3


WRONG = {
    "vision start": (lambda m: m.update(vision_start_token_id=455), "vision_start_token_id is 455, the model's is 457"),
    "image id missing": (lambda m: m.pop("image_token_id"), "image_token_id is None, the model's is 460"),
    "pad": (lambda m: m.update(pad_token_id=449), r"pad_token_id 449 \(<\|im_start\|>\) is part of prompts"),
    "end token": (lambda m: m.update(eos_token_id=448), "eos_token_id lacks 450"),
    "foreign end token": (lambda m: m["eos_token_id"].append(9999), "eos_token_id 9999 is no token"),
    "type": (lambda m: m.update(type="qwen2_5_vl"), "type is 'qwen2_5_vl'"),
    "file": (lambda m: m["vision"].update(filename="vision/model.onnx"), "not 'vision/model.onnx'"),
    "section": (lambda m: m.pop("embedding"), "no section 'embedding'"),
    "input": (lambda m: m["vision"]["inputs"].update(pixel_values="pixels"), "name 'pixels', which the graph does not"),
    "input left out": (lambda m: m["vision"]["inputs"].pop("image_grid_thw"), "'image_grid_thw' among its inputs"),
    "output": (lambda m: m["embedding"]["outputs"].update(inputs_embeds="x"), "outputs of the embedding name 'x'"),
    "states": (lambda m: m["decoder"]["inputs"].update(past_key_names="past.%d.key"), "name 'past.3.key'"),
    "hidden size": (lambda m: m["decoder"].update(hidden_size=64), "decoder.hidden_size is 64, the graphs have 96"),
    "context": (lambda m: m.update(context_length=9999), "context_length is 9999, the model was made for 4096"),
    "tokenizer": (lambda m: m.update(tokenizer_dir="nowhere"), "'nowhere' holds no tokenizer.json"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files_are_found(name, altered):
    edit, message = WRONG[name]
    report = check_genai(altered(CONFIG_FILE, lambda config: edit(config["model"])))
    assert not report.ok and not report.cases
    assert "not opened" in report.headline
    assert any(re.search(message, str(finding)) for finding in report.findings), list(map(str, report.findings))


def test_a_wrong_processor_file_is_found(altered):
    def swap_colours(document: dict) -> None:
        document["processor"]["transforms"][3]["operation"]["attrs"]["qwen2_5_vl"] = 1

    report = check_genai(altered("genai_processor.json", swap_colours))
    assert [str(finding) for finding in report.findings] == [
        "[processor] genai_processor.json: step normalize is not what the checkpoint's processor does."
    ]


def test_other_answers_are_found_and_placed(genai_package, monkeypatch):
    """GenAI is fed other pixels than run: the picture cases differ, the text cases do not."""
    right = Feeder.arrays

    def wrong(self, prompt):
        arrays = right(self, prompt)
        if "pixel_values" in arrays:
            arrays["pixel_values"] = -arrays["pixel_values"]
        return arrays

    monkeypatch.setattr(Feeder, "arrays", wrong)
    report = check_genai(genai_package, threads=1)
    assert not report.ok
    assert [case.same for case in report.cases] == [True, True, False, False, False, True]
    assert "3 of 6 prompts differ" in report.headline
    assert "run has" in str(report.cases[2])
    assert report.cases[2].logit_error > 1e-3


def test_a_refusal_of_genai_is_a_verdict(genai_package, monkeypatch):
    """A picture whose rows do not fit its grid: GenAI raises, the report says so."""
    right = Feeder.arrays

    def wrong(self, prompt):
        arrays = right(self, prompt)
        if "pixel_values" in arrays:
            arrays["image_grid_thw"] = arrays["image_grid_thw"] * 2
        return arrays

    monkeypatch.setattr(Feeder, "arrays", wrong)
    report = check_genai(genai_package, threads=1)
    assert not report.ok
    assert all("GenAI refused" in str(case) for case in report.cases[2:5])


def test_what_cannot_be_judged_is_an_error(genai_package, altered):
    with pytest.raises(UsageError, match="At least 2"):
        check_genai(genai_package, new_tokens=1)
    package = altered(CONFIG_FILE, lambda config: None)
    replace(package.folder, CONFIG_FILE, None)
    with pytest.raises(PackageError, match="qwen-export genai"):
        check_genai(package)


def test_a_turn_end_that_ends_no_answer_is_noted(altered):
    """A base model ends at <|endoftext|> alone; that is the checkpoint's affair, but should be known."""
    package = altered("generation_config.json", lambda document: document.update(eos_token_id=448))
    package = altered(CONFIG_FILE, lambda config: config["model"].update(eos_token_id=[448]))
    report = check_genai(package, threads=1, new_tokens=2)
    assert report.ok
    assert any(r"ends a turn with <|im_end|>" in note for note in report.notes)


@pytest.mark.full
@pytest.mark.parametrize("options", [{"dtype": "fp16"}, {"dtype": "fp32", "logits": "all"}])
def test_other_recipes_pass(options, tiny_checkpoint, tmp_path):
    export_vlm(tiny_checkpoint, tmp_path / "package", recipe=Recipe(target="cpu", **options))
    add_genai_files(tmp_path / "package")
    report = check_genai(tmp_path / "package", threads=1)
    assert report.ok and len(report.cases) == 6
