"""What cannot run is refused in one sentence, before a session is made."""

from __future__ import annotations

import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from qwen_export.errors import PackageError, UsageError
from qwen_export.recipe import Recipe
from qwen_export.runtime import session as module
from qwen_export.runtime.session import Device, Sessions, check_runnable, import_onnxruntime


def fake_package(tmp_path, dtype="fp32", graph_only=False):
    def require_weights(verb):
        if graph_only:
            raise PackageError(f"a graph-only package cannot be used to {verb}")

    return SimpleNamespace(
        folder=tmp_path,
        recipe=Recipe(dtype=dtype),
        require_weights=require_weights,
        components=("embedding", "decoder"),
        decode_graph=None,
        graph_path=lambda component: tmp_path / component / "model.onnx",
    )


@pytest.fixture(autouse=True)
def forget_onnxruntime():
    import_onnxruntime.cache_clear()
    yield
    import_onnxruntime.cache_clear()


def test_bf16_on_the_cpu(tmp_path):
    with pytest.raises(UsageError, match="no bf16 kernels on the CPU"):
        check_runnable(fake_package(tmp_path, "bf16"), Device("cpu"))
    check_runnable(fake_package(tmp_path, "bf16"), Device("cuda"))


def test_graph_only(tmp_path):
    with pytest.raises(PackageError, match="graph-only"):
        check_runnable(fake_package(tmp_path, graph_only=True), Device("cpu"))


def test_a_package_without_a_decoder(tmp_path):
    package = fake_package(tmp_path)
    package.components = ("embedding",)
    with pytest.raises(PackageError, match="has no decoder, so it cannot answer"):
        check_runnable(package, Device("cpu"))
    package.components = ("text",)
    check_runnable(package, Device("cpu"))


def test_unknown_and_missing_providers(tmp_path):
    with pytest.raises(UsageError, match="Unknown provider 'tpu'"):
        Sessions(fake_package(tmp_path), Device("tpu"))
    if "CUDAExecutionProvider" not in import_onnxruntime().get_available_providers():
        with pytest.raises(UsageError, match=r"Provider 'cuda' is not in the installed ONNX Runtime \(it has: cpu\)"):
            Sessions(fake_package(tmp_path), Device("cuda"))


class Installed:
    """A distribution in a folder of its own or a shared one."""

    def __init__(self, place: str) -> None:
        self.locate_file = lambda _: place


def test_both_kinds_in_separate_folders_do_not_disturb_each_other(monkeypatch):
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(f"site-{name}"))
    assert import_onnxruntime()


def test_both_kinds_installed(monkeypatch):
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed("site"))
    with pytest.raises(UsageError, match="overwrite each other's files"):
        import_onnxruntime()


def test_no_onnxruntime(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match=r"qwen-export\[cpu\]"):
        import_onnxruntime()


def test_a_graph_that_cannot_be_opened_names_itself(tmp_path):
    sessions = Sessions(fake_package(tmp_path))
    with pytest.raises(PackageError, match="cannot open the decoder"):
        sessions.get("decoder")
    with pytest.raises(PackageError, match="has no vision_encoder"):
        sessions.get("vision_encoder")


def test_a_silent_fall_back_to_the_cpu_is_an_error(tmp_path, monkeypatch):
    runtime = SimpleNamespace(
        get_available_providers=lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"],
        preload_dlls=lambda: None,
        SessionOptions=lambda: SimpleNamespace(add_session_config_entry=lambda key, value: None),
        InferenceSession=lambda *args, **kwargs: SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"]),
    )
    monkeypatch.setattr(module, "import_onnxruntime", lambda: runtime)
    with pytest.raises(UsageError, match="fell back to the CPU"):
        Sessions(fake_package(tmp_path), Device("cuda")).get("decoder")


def test_options_come_from_the_recipe(tmp_path, monkeypatch):
    seen = {}
    entries = {}

    def open_session(path, options, providers):
        seen["providers"] = providers
        return SimpleNamespace(get_providers=lambda: ["CUDAExecutionProvider"])

    runtime = SimpleNamespace(
        get_available_providers=lambda: ["CUDAExecutionProvider"],
        SessionOptions=lambda: SimpleNamespace(add_session_config_entry=entries.__setitem__),
        InferenceSession=open_session,
    )
    monkeypatch.setattr(module, "import_onnxruntime", lambda: runtime)
    Sessions(fake_package(tmp_path), Device("cuda", 1)).get("decoder")
    assert seen["providers"][0][0] == "CUDAExecutionProvider"
    settings = seen["providers"][0][1]
    assert settings == {**Recipe().session.cuda, "device_id": "1"}
    measured = {"cudnn_conv_algo_search": "HEURISTIC", "arena_extend_strategy": "kSameAsRequested", "use_tf32": "0"}
    assert settings | measured == settings
    assert entries == {"session.use_device_allocator_for_initializers": "1"}
