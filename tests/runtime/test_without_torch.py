"""The runtime works where torch is not installed, and never imports it itself."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import qwen_export.runtime

SCRIPT = """
import sys
sys.modules["torch"] = sys.modules["torchvision"] = None  # as good as not installed: every import of them fails
import importlib, json, pathlib
for name in {modules!r}:
    importlib.import_module(name)
from PIL import Image
from qwen_export.model_config import read_config
from qwen_export.runtime.preprocess import ImagePreprocessor
from qwen_export.runtime.prompt import PromptBuilder, user_message
from qwen_export.runtime.video import prepare_video, read_settings
folder = pathlib.Path({folder!r})
picture = Image.new("RGB", (200, 100), "red")
media = [ImagePreprocessor(folder).prepare(picture), prepare_video([picture] * 3, read_settings(folder))]
builder = PromptBuilder(folder, read_config(folder))
prompt = builder.encode(builder.render([user_message("What is it?", media)]), media)
print(json.dumps([len(prompt.input_ids), sum(item.grid[0] for item in media)]))
"""


def runtime_modules() -> list[str]:
    root = qwen_export.runtime.__path__
    return ["qwen_export.runtime", *(f"qwen_export.runtime.{m.name}" for m in pkgutil.iter_modules(root))]


def test_every_module_works_with_torch_blocked(tiny_checkpoint):
    modules = runtime_modules()
    assert "qwen_export.runtime.engine" in modules
    script = SCRIPT.format(modules=modules, folder=str(tiny_checkpoint))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    tokens, groups = eval(done.stdout)
    assert tokens > 60
    assert groups == 3
    assert "PyTorch" not in done.stderr
