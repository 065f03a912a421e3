"""Weights: where their bytes lie, how they are made of checkpoint tensors, and the streaming that writes them."""

from qwen_export.weights.evaluate import evaluate
from qwen_export.weights.layout import Layout, Slot, plan_layout, stored_bytes
from qwen_export.weights.source import tensor_sha256
from qwen_export.weights.stream import DataFile, Progress, Streamed, stream, working_memory

__all__ = [
    "DataFile",
    "Layout",
    "Progress",
    "Slot",
    "Streamed",
    "evaluate",
    "plan_layout",
    "stored_bytes",
    "stream",
    "tensor_sha256",
    "working_memory",
]
