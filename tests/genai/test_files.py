"""GenAI's files: what is in them, that GenAI takes it, and what is refused before it is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnxruntime_genai as og
import pytest

from qwen_export.errors import PackageError
from qwen_export.genai import add_genai_files, genai_files
from qwen_export.package import audit, open_package
from qwen_export.recipe import Recipe
from qwen_export.runtime.genai import CONFIG_FILE, cuda_options
from tests.genai.altered_package import alter, replace


def config_of(package) -> dict:
    return json.loads(genai_files(package)[CONFIG_FILE])


def test_everything_else_stays_as_it_is(genai_package):
    assert audit(genai_package.folder, deep=True).ok
    assert not (genai_package.folder / "processor_config.json").exists()
    added = {"genai_config.json", "genai_processor.json"}
    added |= {f"genai_tokenizer/{n}" for n in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")}
    assert added < set(genai_package.manifest.files)


def test_writing_twice_gives_the_same_bytes(genai_package, tmp_path):
    folder = tmp_path / "package"
    shutil.copytree(genai_package.folder, folder)
    before = (folder / "manifest.json").read_bytes()
    add_genai_files(folder)
    assert (folder / "manifest.json").read_bytes() == before


def test_a_tokenizer_class_that_genai_knows_needs_no_copy(altered):
    package = altered("tokenizer_config.json", lambda config: config.update(tokenizer_class="Qwen2Tokenizer"))
    assert set(genai_files(package)) == {"genai_config.json", "genai_processor.json"}
    assert "tokenizer_dir" not in config_of(package)["model"]
    replace(package.folder, CONFIG_FILE, genai_files(package)[CONFIG_FILE])
    assert og.Tokenizer(og.Model(str(package.folder))).encode("hello").tolist()


def test_genai_does_not_know_the_class_that_transformers_writes(altered):
    """The reason for the copy; without this failure it can go."""
    package = altered(CONFIG_FILE, lambda config: config["model"].pop("tokenizer_dir"))
    with pytest.raises(RuntimeError, match="Unsupported tokenizer class: Qwen3_5Tokenizer"):
        og.Tokenizer(og.Model(str(package.folder)))


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ([450, 448], None, [448, 450]),
        (450, None, [450]),
        (None, 448, [448]),
        ("no file", 450, [450]),
    ],
)
def test_every_end_token_is_told(generation, config, expected, altered):
    package = altered("config.json", lambda document: document["text_config"].update(eos_token_id=config))
    if generation == "no file":
        replace(package.folder, "generation_config.json", None)
    else:
        alter(package.folder, "generation_config.json", lambda document: document.update(eos_token_id=generation))
    assert config_of(open_package(package.folder))["model"]["eos_token_id"] == expected


def test_limits_and_sampling_are_the_checkpoints(genai_package, altered):
    made = config_of(genai_package)
    assert made["model"]["context_length"] == made["search"]["max_length"] == 4096
    assert {key: made["search"][key] for key in ("do_sample", "temperature", "top_k", "top_p")} == {
        "do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95,
    }  # fmt: skip
    package = altered("generation_config.json", lambda document: document.clear() or document.update(max_length=100))
    search = config_of(package)["search"]
    assert (search["do_sample"], search["temperature"], search["top_k"], search["max_length"]) == (False, 1.0, 50, 100)


def test_padding_is_never_a_token_of_prompts(altered):
    package = altered("generation_config.json", lambda document: document.update(pad_token_id=450))
    assert config_of(package)["model"]["pad_token_id"] == 448


@pytest.mark.parametrize(
    ("key", "message"),
    [("image_token_id", "image_pad"), ("vision_start_token_id", "vision_start"), ("video_token_id", "video_pad")],
)
def test_ids_that_are_not_the_tokenizers_are_refused(key, message, altered):
    package = altered("config.json", lambda document: document.update({key: 455}))
    with pytest.raises(PackageError, match=rf"{key} is 455, but the tokenizer has <\|{message}\|>"):
        genai_files(package)


def test_a_graph_only_package_is_refused(altered):
    package = altered(CONFIG_FILE, lambda config: None)
    manifest = json.loads((package.folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["weights"] = "absent"
    (package.folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(PackageError, match="graph-only"):
        add_genai_files(package.folder)


def test_a_processor_that_genai_cannot_copy_is_refused(altered):
    package = altered("preprocessor_config.json", lambda document: document.update(do_normalize=False))
    with pytest.raises(PackageError, match="do_normalize = False"):
        genai_files(package)


class TestCudaSection:
    """The provider section for CUDA, as far as it can be tried without CUDA."""

    @pytest.fixture
    def folder(self, altered) -> Path:
        def for_cuda(document: dict) -> None:
            document["recipe"]["target"] = "cuda"

        package = altered(CONFIG_FILE, lambda config: None)
        manifest = json.loads((package.folder / "manifest.json").read_text(encoding="utf-8"))
        for_cuda(manifest)
        (package.folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        replace(package.folder, CONFIG_FILE, genai_files(open_package(package.folder))[CONFIG_FILE])
        return package.folder

    def test_it_has_the_recipes_options(self, folder):
        package = open_package(folder)
        model = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))["model"]
        providers = model["decoder"]["session_options"]["provider_options"]
        assert providers == [{"cuda": {"enable_cuda_graph": "0", **Recipe().session.cuda}}]
        assert cuda_options(package) == providers[0]["cuda"]
        for key in ("cudnn_conv_algo_search", "arena_extend_strategy", "use_tf32"):
            assert key in providers[0]["cuda"]

    def test_genai_reads_it_and_every_session_follows_it(self, folder):
        """All three sessions go where the decoder goes: with CUDA none opens here, without it all do."""
        config = og.Config(str(folder))
        if not og.is_cuda_available():
            with pytest.raises(RuntimeError, match=r"(?i)cuda"):
                og.Model(config)
        config.clear_providers()
        assert og.Model(config).device_type == "CPU"

    def test_genai_checks_the_form_of_options(self, folder):
        """Each option is seen by GenAI's parser: the same key with a number in place of a text is refused."""
        for key in cuda_options(open_package(folder)):
            document = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
            document["model"]["decoder"]["session_options"]["provider_options"][0]["cuda"][key] = 1
            other = folder / "broken"
            other.mkdir(exist_ok=True)
            (other / CONFIG_FILE).write_text(json.dumps(document), encoding="utf-8")
            with pytest.raises(RuntimeError, match=f"cuda:{key}"):
                og.Config(str(other))

    def test_options_can_be_set_by_name(self, folder):
        config = og.Config(str(folder))
        config.clear_providers()
        config.append_provider("cuda")
        for key, value in cuda_options(open_package(folder)).items():
            config.set_provider_option("cuda", key, value)


def test_every_component_takes_over_the_decoders_session_options(altered, tmp_path, monkeypatch):
    """One section decides for all three: profiling, asked for in the decoder's alone, starts in three sessions."""
    package = altered(
        CONFIG_FILE, lambda config: config["model"]["decoder"]["session_options"].update(enable_profiling="profile")
    )
    monkeypatch.chdir(tmp_path)
    model = og.Model(str(package.folder))
    del model
    assert len(list(tmp_path.glob("profile*.json"))) == 3
