"""Too large a request is refused with the number and what would fit; the estimates hold measured peaks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from qwen_export.errors import UsageError
from qwen_export.model_config import parse_config
from qwen_export.recipe import Recipe
from qwen_export.runtime import memory
from qwen_export.runtime.memory import RESERVE, MemoryModel, check_decoder, check_vision, free_memory
from qwen_export.runtime.session import Device

LARGE = {
    "model_type": "qwen3_5",
    "text_config": {
        "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64, "num_attention_heads": 24,
        "linear_num_value_heads": 48, "rope_parameters": {"mrope_section": [11, 11, 10]},
    },
    "vision_config": {"out_hidden_size": 5120},
}  # fmt: skip
GIB = 2**30


def model(dtype="fp16", target="cuda", provider="cuda", **recipe):
    return MemoryModel(parse_config(LARGE), Recipe(dtype=dtype, target=target, **recipe), Device(provider))


def test_the_advised_max_pixels_fits_and_one_step_more_does_not():
    ours, free = model("fp32", "cpu", "cpu"), 4 * GIB
    with pytest.raises(UsageError) as caught:
        check_vision(ours, 1, 65536, lambda: free)
    assert "4.00 GiB are free" in str(caught.value)
    pixels = int(re.search(r"--max-pixels (\d+)", str(caught.value)).group(1))
    check_vision(ours, 1, pixels // 256, lambda: free)
    with pytest.raises(UsageError):
        check_vision(ours, 1, pixels // 256 + 4, lambda: free)


def test_the_advised_slice_fits_and_one_more_does_not():
    ours, free = model("fp32", "cpu", "cpu"), 12 * GIB
    with pytest.raises(UsageError) as caught:
        check_decoder(ours, 1, 4096, 16384, lambda: free, padded=False)
    size = int(re.search(r"--prefill-slice (\d+)", str(caught.value)).group(1))
    check_decoder(ours, 1, size, 16384 + 4096 - size, lambda: free, padded=False)
    with pytest.raises(UsageError):
        check_decoder(ours, 1, size + 1, 16384 + 4095 - size, lambda: free, padded=False)


def test_nothing_fits_is_said_as_well():
    with pytest.raises(UsageError, match="Close other programs"):
        check_vision(model(), 1, 16384, lambda: RESERVE)
    with pytest.raises(UsageError, match="Close other programs"):
        check_decoder(model(), 1, 1024, 16384, lambda: RESERVE, padded=False)


def test_unknown_free_memory_refuses_nothing():
    check_vision(model(), 1, 10**7, lambda: None)
    check_decoder(model(), 1, 10**6, 0, lambda: None, padded=False)


def test_a_short_turn_does_not_ask_the_gpu():
    def ask():
        raise AssertionError("nvidia-smi takes longer than the turn")

    check_decoder(model(), 1, 20, 500, ask, padded=False)
    check_vision(model(), 1, 1024, ask)


def test_vision_on_cuda_is_linear_and_holds_the_design_figure():
    ours = model()
    assert ours.vision(1, 19200) < 1.5 * GIB
    assert ours.vision(1, 38400) == pytest.approx(2 * ours.vision(1, 19200), abs=2)


def test_padding_costs_scores_on_cuda():
    ours = model()
    plain, padded = (ours.decoder(2, 1024, 8192, padded=p) for p in (False, True))
    assert padded - plain == 2 * 2 * 24 * 1024 * (1024 + 8192) * 4


def test_sliced_prefill_costs_less_than_the_whole_prompt():
    ours = model("fp32", "cpu", "cpu")
    assert ours.decoder(1, 1024, 15360) < ours.decoder(1, 16384, 0) / 4


def test_free_gpu_memory_comes_from_nvidia_smi(monkeypatch):
    def fake(command, **kwargs):
        assert command[:2] == ["nvidia-smi", "--id=1"]
        return SimpleNamespace(stdout="1234\n")

    monkeypatch.setattr(subprocess, "run", fake)
    assert free_memory(Device("cuda", 1)) == 1234 * 2**20

    def missing(*args, **kwargs):
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", missing)
    assert free_memory(Device("cuda")) is None


def test_a_container_limit_counts(monkeypatch):
    monkeypatch.setattr(memory, "_number", lambda path: {"memory.max": 3 * GIB, "memory.current": 2 * GIB}[path.name])
    monkeypatch.setattr(memory, "_cgroup_cache", lambda: GIB // 2)
    assert free_memory(Device("cpu")) <= 1.5 * GIB


MEASURE = """
import json, sys, threading
import numpy as np
from qwen_export.package import open_package
from qwen_export.runtime.engine import Engine
from qwen_export.runtime.memory import MemoryModel, resident_memory
from qwen_export.runtime.prompt import Prompt

def peak_of(work):  # graphs run without the interpreter's lock, so a thread can watch
    start, highest, done = resident_memory(), 0, threading.Event()
    def watch():
        nonlocal highest
        while not done.wait(0.001):
            highest = max(highest, resident_memory())
    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return highest - start

engine = Engine(open_package(sys.argv[1]))
model = MemoryModel(engine.config, engine.recipe, engine.graphs.device)
_, state = engine.prefill([Prompt(np.arange(3000) % 400)], slice_size=100)
ids = np.arange(900)[None] % 400
decoder = peak_of(lambda: engine.step(ids, state, shrink=True))
pixels = np.random.default_rng(0).normal(size=(60 * 120, engine.config.vision.patch_width)).astype(np.float32)
inputs = {"pixel_values": pixels, "image_grid_thw": np.array([[1, 60, 120]])}
engine.graphs.sessions.get("vision_encoder")
vision = peak_of(lambda: engine.graphs.run_to_host("vision_encoder", inputs))
print(json.dumps([[decoder, model.decoder(1, 900, 3000)], [vision, model.vision(1, len(pixels))]]))
"""


@pytest.mark.full
def test_estimates_are_above_measured_peaks_and_not_absurd(tiny_package):
    # in a process of its own: memory that earlier tests gave back to the allocator would hide the growth
    command = [sys.executable, "-c", MEASURE, str(tiny_package.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for used, estimate in json.loads(done.stdout):
        assert 0.3 * estimate < used <= estimate
