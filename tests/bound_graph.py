"""Give built graphs their weights in memory and run them on ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import torch

from qwen_export.bindings import Bindings
from qwen_export.contract import states
from qwen_export.model_config import ModelConfig
from qwen_export.recipe import Recipe
from qwen_export.tracing import BuiltGraph, build_graph
from qwen_export.wrappers.piece import evaluate

Arrays = dict[str, np.ndarray]


class GraphSession:
    """An ONNX Runtime session that takes and gives arrays by name."""

    def __init__(self, serialized: bytes, *, optimise: bool = True) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        if not optimise:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.session = ort.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])
        self.inputs = [value.name for value in self.session.get_inputs()]
        self.outputs = [value.name for value in self.session.get_outputs()]

    def run(self, feeds: Mapping[str, np.ndarray]) -> Arrays:
        """All outputs by name. Inputs that the graph does not have are an error."""
        given = {name: np.ascontiguousarray(value) for name, value in feeds.items()}
        return dict(zip(self.outputs, self.session.run(None, given), strict=True))


def serialize(model: ir.Model, bindings: Bindings, tensors: Mapping[str, torch.Tensor]) -> bytes:
    """The model with the weights its bindings make of checkpoint tensors. The model itself keeps no data."""
    initializers = model.graph.initializers
    for name, binding in bindings.items():
        initializers[name].const_value = ir.tensor(evaluate(binding, tensors), name=name)
    try:
        return ir.to_proto(model).SerializeToString()
    finally:
        for name in bindings:
            initializers[name].const_value = None


class TinyGraphs:
    """Graphs of one small model, each built once."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, torch.Tensor]) -> None:
        self.config, self.tensors = config, tensors
        self._built: dict[str, BuiltGraph] = {}
        self._sessions: dict[str, GraphSession] = {}

    def built(self, component: str, recipe: Recipe, *, single_step: bool = False) -> BuiltGraph:
        """The graph without weights. Read only: clone it to change it."""
        key = f"{component} {single_step} {recipe}"
        if key not in self._built:
            self._built[key] = build_graph(component, self.config, recipe, single_step=single_step)
        return self._built[key]

    def session(self, component: str, recipe: Recipe, *, single_step: bool = False) -> GraphSession:
        """The graph with this model's weights, ready to run."""
        key = f"{component} {single_step} {recipe}"
        if key not in self._sessions:
            built = self.built(component, recipe, single_step=single_step)
            self._sessions[key] = GraphSession(serialize(built.model, built.bindings, self.tensors))
        return self._sessions[key]

    def empty_states(self, batch: int, recipe: Recipe) -> Arrays:
        """Past states before the first token, by input name."""
        carried = states(self.config.text, recipe.tensor_dtype, max_length=recipe.static_length)
        sizes = {"batch": batch, "past_sequence_length": 0}
        return {
            state.past.name: np.zeros([sizes.get(d, d) for d in state.past.shape], state.past.dtype)  # type: ignore[call-overload]
            for state in carried
        }


def carried_on(outputs: Arrays) -> Arrays:
    """The present states of one call as the past states of the next."""
    return {
        name.replace("present.", "past_key_values.", 1): value
        for name, value in outputs.items()
        if name.startswith("present.")
    }
