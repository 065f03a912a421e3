"""Export dense qwen3_5 vision-language checkpoints to standard-operator ONNX packages.

The verbs are loaded when they are first used, so that those which need no torch never import it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

VERBS = {
    "export_vlm": "qwen_export.export",
    "export_text": "qwen_export.export",
    "export_component": "qwen_export.export",
    "bind": "qwen_export.package",
    "audit": "qwen_export.package",
    "inspect": "qwen_export.package",
    "diff": "qwen_export.package",
    "open_package": "qwen_export.package",
    "run": "qwen_export.runtime.run",
}
"""Public function -> the module it lives in."""

__all__ = ["__version__", *VERBS]


def __getattr__(name: str) -> Any:
    if name not in VERBS:
        raise AttributeError(f"module 'qwen_export' has no attribute {name!r}")
    return getattr(import_module(VERBS[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *VERBS])
