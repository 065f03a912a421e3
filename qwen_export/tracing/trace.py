"""Trace one module to a weightless ONNX model through torch.export.

No weight data is touched: the module lives on the meta device. Sample sizes are at least 2 and all different, so that
no axis is taken for a constant or for another one.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript._framework_apis import torch_2_5 as onnxscript_apis
from torch import nn

from qwen_export.bindings import Binding
from qwen_export.contract import BATCH, FEATURES, MEDIA, OPSET, PAST, PATCHES, SEQUENCE, TOTAL, TensorSpec
from qwen_export.errors import InternalError
from qwen_export.tracing.translations import translation_table

SAMPLE_SIZES = {
    BATCH: 2,
    SEQUENCE: 3,
    PAST: 5,
    TOTAL: 8,
    MEDIA: 4,
    PATCHES: 56,
    FEATURES: 7,
    "chunk_slots": 64,
    "query_blocks": 6,
    "block_slots": 9,
}
"""Length of each symbolic axis in the sample inputs. Any sizes >= 2, all different, give the same graph."""


@dataclass
class TracedPiece:
    """A piece as a graph of its own, its weights without data."""

    model: ir.Model
    bindings: dict[str, Binding]


def sample(spec: TensorSpec, sizes: Mapping[str, int]) -> torch.Tensor:
    """An input without data for one declared tensor."""
    shape = [dim if isinstance(dim, int) else sizes[dim] for dim in spec.shape]
    return torch.empty(shape, dtype=getattr(torch, spec.dtype), device="meta")


def trace(
    module: nn.Module,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[str],
    *,
    sizes: Mapping[str, int] | None = None,
    nested_from: int | None = None,
) -> ir.Model:
    """Export a module whose forward takes `inputs` in order.

    Args:
        module: on the meta device.
        inputs: declared tensors; a string axis is dynamic.
        outputs: output names in order.
        sizes: sample length per axis name, on top of `SAMPLE_SIZES`.
        nested_from: from this input on, all are passed as one list (the decoder's states).
    """
    known = {**SAMPLE_SIZES, **(sizes or {})}
    args: list = [sample(spec, known) for spec in inputs]
    dynamic: list = [
        {axis: torch.export.Dim.DYNAMIC for axis, dim in enumerate(spec.shape) if isinstance(dim, str)}
        for spec in inputs
    ]
    if nested_from is not None:
        args = [*args[:nested_from], args[nested_from:]]
        dynamic = [*dynamic[:nested_from], dynamic[nested_from:]]
    with torch.no_grad(), _quiet(), _translations_read_once():
        program = torch.export.export(module, tuple(args), dynamic_shapes=tuple(dynamic), strict=False)
        exported = torch.onnx.export(
            program,
            opset_version=OPSET,
            dynamo=True,
            optimize=False,
            verbose=False,
            input_names=[spec.name for spec in inputs],
            output_names=list(outputs),
            custom_translation_table=translation_table(),
        )
    assert exported is not None
    model = exported.model
    if model.opset_imports.get("") != OPSET:
        raise InternalError(f"torch.onnx exported opset {model.opset_imports.get('')} where {OPSET} was asked for.")
    return model


def without_weight_data(model: ir.Model, bindings: Mapping[str, Binding], constants: Mapping[str, np.ndarray]) -> None:
    """Forget the data of bound weights (there is none) and give the config's constants theirs."""
    for name, value in model.graph.initializers.items():
        if name in bindings:
            value.const_value = None
        elif name in constants:
            value.const_value = ir.tensor(constants[name], name=name)


@functools.cache
def _torchlib() -> tuple[Any, ...]:
    return tuple(onnxscript_apis.get_torchlib_ops())


@contextlib.contextmanager
def _translations_read_once():
    """torch.onnx parses onnxscript's five hundred translations for every export; their list is the same each time."""
    read = _torchlib()
    original = onnxscript_apis.get_torchlib_ops
    onnxscript_apis.get_torchlib_ops = lambda: list(read)
    try:
        yield
    finally:
        onnxscript_apis.get_torchlib_ops = original


@contextlib.contextmanager
def _quiet():
    """Keep the exporter's own progress prints and advice out of ours."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        level = logging.getLogger("torch.onnx").level
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        try:
            yield
        finally:
            logging.getLogger("torch.onnx").setLevel(level)
