"""Export dense qwen3_5 vision-language checkpoints to standard-operator ONNX packages.

The verbs below are loaded when they are first used: `run`, `audit`, `inspect`, `diff` and `bind` never import torch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

_VERBS = {
    "export_vlm": "qwen_export.export",
    "export_text": "qwen_export.export",
    "export_component": "qwen_export.export",
    "bind": "qwen_export.package",
    "audit": "qwen_export.package",
    "inspect": "qwen_export.package",
    "diff": "qwen_export.package",
    "baseline": "qwen_export.package",
    "open_package": "qwen_export.package",
    "run": "qwen_export.runtime.run",
    "verify": "qwen_export.verify",
    "Recipe": "qwen_export.recipe",
}
"""Public name -> module that has it."""

__all__ = ["__version__", *_VERBS]


def __getattr__(name: str) -> Any:
    if name not in _VERBS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_VERBS[name]), name)


class _Verbs(ModuleType):
    """Keeps the verb `verify` where importing the room of the same name would put the module."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _VERBS and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Verbs


def __dir__() -> list[str]:
    return sorted(__all__)
