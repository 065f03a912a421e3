"""The order of the passes over one traced piece, and the reason for each place."""

from __future__ import annotations

import contextlib
import logging

import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass, RemoveUnusedNodesPass
from onnxscript import optimizer

from qwen_export.errors import InternalError
from qwen_export.passes.lower_cached_attention import lower_cached_attention
from qwen_export.passes.lower_gated_delta_net import lower_gated_delta_net
from qwen_export.passes.lower_packed_attention import lower_packed_attention
from qwen_export.passes.lower_plan_step import lower_plan_step
from qwen_export.passes.lower_vision_plan import lower_vision_plan
from qwen_export.passes.names import rename
from qwen_export.passes.static_reshapes import static_reshapes
from qwen_export.recipe import Recipe


def lower(model: ir.Model, recipe: Recipe, *, single_step: bool = False) -> None:
    """Turn a traced piece into standard operators, in place.

    Args: single_step: for the capturable decode graph, free of If, Scan and Loop.
    """
    with _quiet():
        # first: lifts constants, turns SplitToSequence into Split and Slice chains into one
        optimizer.optimize_ir(model, num_iterations=2, onnx_shape_inference=False)
        # needs torch's shapes, which later passes drop; leaves Shape chains without readers
        static_reshapes(model)
        # the ideas, each independent of the others
        lower_plan_step(model, single_step)
        lower_gated_delta_net(model, recipe.effective_chunk_size, single_step)
        lower_cached_attention(model, single_step)
        lower_vision_plan(model)
        lower_packed_attention(model)
        # repeated shape arithmetic of a piece, then everything nobody reads
        CommonSubexpressionEliminationPass()(model)
        RemoveUnusedNodesPass()(model)
        # last: numbers follow the final order of nodes
        rename(model)
    left = {
        node.op_type
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
        if node.domain not in ("", "ai.onnx") or "Sequence" in node.op_type
    }
    if left:
        raise InternalError(f"Operators left after all passes: {', '.join(sorted(left))}.")


@contextlib.contextmanager
def _quiet():
    """The optimiser warns about every weight without data; they have none on purpose."""
    loggers = [logging.getLogger(name) for name in ("onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
