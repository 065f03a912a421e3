"""Tracing: wrappers become graphs. Importing this package does not import torch; building a graph does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qwen_export.tracing.build import BuiltGraph as BuiltGraph
    from qwen_export.tracing.build import build_graph as build_graph


def __getattr__(name: str) -> Any:
    if name in ("build_graph", "BuiltGraph"):
        from qwen_export.tracing import build

        return getattr(build, name)
    raise AttributeError(name)
