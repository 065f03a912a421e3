"""Where a package leaves the truth: every stage and every operation on its own, with the truth's inputs fed in.

A fault in layer 2 then shows in layer 2 and nowhere else. The graphs are computed node by node in float32, half
packages too: on the same stored weights a right graph then agrees with the truth to float32 accuracy, and what remains
is a fault and not a rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data
from onnx.reference.op_run import OpRun

from qwen_export.contract import DECODER, FLOAT32, TEXT, VISION_ENCODER, StateSpec, states
from qwen_export.package import Package
from qwen_export.verify.bisect_points import (
    CALLS,
    QUIET,
    QUIET_VISION_CALL,
    QUIETED,
    VISION_CALL,
    gathered_rows,
    operations,
    points_of,
    stages_of,
)
from qwen_export.verify.candidate import empty
from qwen_export.verify.collect import Said
from qwen_export.verify.graph_runners import load_graph
from qwen_export.verify.half_evaluator import HALVES, HalfEvaluator
from qwen_export.verify.layer_outputs import layer_outputs, reads
from qwen_export.verify.reference_file import INSIDE, Reference

SINGLE_STEP = "decoder, single-token graph"
RULE = ("mixer", "recurrent_state")
"""Places judged by `delta_rule_error`; all others by `operation_error`."""


@dataclass(frozen=True)
class Row:
    """One operation with the truth's inputs."""

    component: str
    stage: str
    call: str
    place: str
    operations: tuple[str, ...]
    error: float
    """Relative RMS."""
    limit: float

    @property
    def where(self) -> tuple[str, str, str]:
        """The place, whatever the call."""
        return self.component, self.stage, self.place

    @property
    def wrong(self) -> bool:
        """Whether the package leaves the truth here."""
        return not self.error <= self.limit


@dataclass
class Bisection:
    """Every operation compared, in the order of computation."""

    rows: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Stages that could not be computed at all."""

    @property
    def faults(self) -> list[Row]:
        """Operations at fault."""
        return [row for row in self.rows if row.wrong]

    @property
    def first(self) -> Row | None:
        """The first place at fault, in the call that shows it most."""
        faults = self.faults
        same = [row for row in faults if row.where == faults[0].where]
        return max(same, key=lambda row: row.error if math.isfinite(row.error) else math.inf, default=None)

    def worst(self, count: int) -> list[Row]:
        """The operations nearest to their limits."""
        return sorted(self.rows, key=lambda row: -row.error / row.limit)[:count]

    def __str__(self) -> str:
        row = self.first
        if row is None and self.problems:
            return self.problems[0]
        if row is None:
            return f"no operation of {len(self.rows)} leaves the truth by itself"
        return (
            f"{row.component}, {row.stage}: {row.place} is wrong by {row.error:.2g} (call {row.call}); "
            f"operations: {', '.join(row.operations[:8])}"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "summary": str(self),
            "problems": self.problems,
            "rows": [{**vars(row), "operations": list(row.operations), "wrong": row.wrong} for row in self.rows],
        }


class WideEvaluator(HalfEvaluator):
    """Computes a half graph in float32 throughout: casts to half do nothing."""

    def _load_impl(self, node: onnx.NodeProto, input_types: Any = None) -> Any:
        if node.op_type == "Cast" and any(
            a.name == "to" and a.i in (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16) for a in node.attribute
        ):
            return _CastToFloat
        return super()._load_impl(node, input_types)


class _CastToFloat(OpRun):
    def _run(self, x, to=None, saturate=None, round_mode=None):  # type: ignore[no-untyped-def]
        return (x.astype(np.float32),)


def find_faults(package: Package, reference: Reference, said: Said) -> Bisection:
    """Compare every operation of a package with the reference's inside."""
    found = Bisection()
    graphs = [(component, package.graph_path(component)) for component in package.components]
    if package.decode_graph is not None:
        graphs.append((SINGLE_STEP, package.decode_graph))
    for component, path in graphs:
        model = load_graph(path)
        work = _Component(package, component, model, str(path.parent), reference)
        for stage, nodes in stages_of(model.graph).items():
            said(f"operations: {component}, {stage}")
            try:
                found.rows += list(work.rows(stage, nodes))
            except (ValueError, TypeError, IndexError, KeyError, RuntimeError, AssertionError) as error:
                found.problems.append(f"{component}, {stage} cannot be computed: {str(error).splitlines()[0]}")
    return found


class _Component:
    """One graph, computed stage by stage; only values that cross from stage to stage are kept."""

    def __init__(
        self, package: Package, component: str, model: onnx.ModelProto, folder: str, reference: Reference
    ) -> None:
        self._package, self._component, self._model = package, component, model
        self._folder, self._reference = folder, reference
        self._crossing: dict[tuple[str, str], np.ndarray] = {}
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self._states = states(package.config.text, FLOAT32, max_length=package.recipe.static_length)
        prefix = "blocks" if component == VISION_ENCODER else "layers"
        self._layer_outputs = {value: f"{prefix}.{layer}.output" for layer, value in layer_outputs(model.graph).items()}
        self._rows_value = gathered_rows(model.graph) if component == VISION_ENCODER else ""

    def rows(self, stage: str, nodes: list[onnx.NodeProto]) -> Iterator[Row]:
        """Compare every place of a stage in every call."""
        points = points_of(self._model.graph, stage, nodes)
        known = [point.value for point in points]
        made = {name for node in nodes for name in node.output}
        wanted = [name for name in dict.fromkeys(n for node in nodes for n in reads(node)) if name not in made]
        evaluator = self._evaluator(nodes, [name for name in wanted if name in self._weights])
        outside = [name for name in wanted if name not in self._weights]
        limits = self._package.recipe.tolerances
        for call, quiet in self._calls():
            results: dict[str, Any] = {"": None, **evaluator.rt_inits_}
            results.update({name: self._given(call, name) for name in outside})
            if quiet and stage != "prelude" and "inputs_embeds" in results:  # no prelude touched the residual stream
                results["inputs_embeds"] = results["inputs_embeds"] * np.float32(QUIET)
            for node, proto in zip(evaluator.rt_nodes_, nodes, strict=True):
                context = {"context": results} if node.need_context() else {}
                with np.errstate(all="ignore"):
                    outputs = node.run(*(results[name] for name in proto.input), **context)
                results.update(zip(proto.output, outputs, strict=False))
                for point in points:
                    if point.value in proto.output and self._reference.has(INSIDE, call, point.truth):
                        mine, truth = self._both(call, point.truth, results[point.value], results)
                        names = tuple(operations(nodes, point.value, known))
                        place = point.truth.removeprefix(stage + ".")
                        error = _relative(*self._unpadded(call, point.truth, mine, truth))
                        limit = limits.delta_rule_error if place in RULE else limits.operation_error
                        yield Row(self._component, stage, call, place, names, error, limit)
                        # what follows is fed the truth, so that one fault is one row
                        if mine.shape == truth.shape:
                            fed = truth * np.float32(QUIET) if quiet and place in QUIETED else truth
                            results[point.value] = _replaced(results[point.value], fed)
            self._crossing.update({(call, name): results[name] for name in made if name in results})

    def _calls(self) -> list[tuple[str, bool]]:
        """Name of each call of this component, and whether it is a quiet one."""
        if self._component in (DECODER, TEXT):
            return [(call.name, call.quiet) for call in CALLS]
        if self._component == SINGLE_STEP:
            return [(call.name, call.quiet) for call in CALLS if call.rows == (1,)]
        if not self._reference.has(INSIDE, VISION_CALL, "pixel_values"):
            return []
        return [(VISION_CALL, False), (QUIET_VISION_CALL, True)]

    def _evaluator(self, nodes: list[onnx.NodeProto], weights: list[str]) -> WideEvaluator:
        tensors = []
        for name in weights:
            tensor = onnx.TensorProto()
            tensor.CopyFrom(self._weights[name])
            if uses_external_data(tensor):
                load_external_data_for_tensor(tensor, self._folder)
                tensor.data_location = onnx.TensorProto.DEFAULT
                del tensor.external_data[:]
            array = onnx.numpy_helper.to_array(tensor)
            if array.dtype in HALVES:
                tensor = onnx.numpy_helper.from_array(array.astype(np.float32), name)
            tensors.append(tensor)
        graph = onnx.GraphProto(name="stage", node=nodes, initializer=tensors)
        model = onnx.ModelProto(ir_version=self._model.ir_version, graph=graph)
        model.opset_import.extend(self._model.opset_import)
        return WideEvaluator(model)

    def _given(self, call: str, name: str) -> np.ndarray:
        """A value that a stage reads: of an earlier stage, or an input of the graph."""
        if (call, name) in self._crossing:
            return self._crossing[call, name]
        for spec in self._states:
            if spec.past.name == name:
                return self._past(call, spec)
        if name in self._layer_outputs:  # the layer before could not be computed
            return self._reference.get(INSIDE, call, self._layer_outputs[name])
        value = self._reference.get(INSIDE, call, name)
        if name == "attention_mask" and self._component == SINGLE_STEP:
            rest = (self._package.recipe.static_length or 0) - value.shape[1]
            return np.pad(value, ((0, 0), (0, rest)))
        return value

    def _past(self, call: str, spec: StateSpec) -> np.ndarray:
        after = next(c.after for c in CALLS if c.name == call)
        batch = len(self._reference.get(INSIDE, call, "attention_mask"))
        full = empty(spec, batch, np.float32)
        if after is None:
            return full
        value = self._reference.get(INSIDE, after, f"layers.{spec.layer}.{spec.kind}")
        if spec.kind not in ("key", "value") or self._package.recipe.static_length is None:
            return value
        full[:, :, : value.shape[2]] = value
        return full

    def _both(self, call: str, name: str, mine: np.ndarray, results: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Package and truth in one shape, float32."""
        truth = self._reference.get(INSIDE, call, name).astype(np.float32)
        if name in ("prelude.cos", "prelude.sin") and self._component == VISION_ENCODER and mine.ndim == 3:
            truth = truth[results[self._rows_value]] if mine.shape[:2] != (1, len(truth)) else truth[None]
        elif name.endswith((".key", ".value")) and mine.shape[2] > truth.shape[2]:
            mine = mine[:, :, : truth.shape[2]]
        elif mine.ndim == 3 and mine.shape[1] == 1 < truth.shape[1]:
            truth = truth[:, -1:]  # the head of a graph that gives the last position
        elif truth.size == mine.size:
            truth = truth.reshape(mine.shape)
        return mine, truth

    def _unpadded(self, call: str, name: str, mine: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the contract specifies: nothing at padding, but all of conv and recurrent state."""
        if call != "padded" or name.endswith(("conv_state", "recurrent_state")) or mine.shape != truth.shape:
            return mine, truth
        mask = self._reference.get(INSIDE, call, "attention_mask").astype(bool)
        if name.endswith((".key", ".value")):
            return mine.swapaxes(1, 2)[mask], truth.swapaxes(1, 2)[mask]
        mask = mask[:, -mine.shape[1] :]
        return mine[mask], truth[mask]


def _replaced(value: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """The truth in the place of a value; in a static KV buffer, in the part that is filled."""
    if value.ndim != 4 or value.shape == truth.shape:
        return truth
    out = value.copy()
    out[:, :, : truth.shape[2]] = truth
    return out


def _relative(mine: np.ndarray, truth: np.ndarray) -> float:
    """RMS error over the truth's RMS; NaN where anything is not finite, infinite where the shapes differ."""
    if mine.shape != truth.shape:
        return math.inf
    a, t = mine.astype(np.float64), truth.astype(np.float64)
    error, size = float(((a - t) ** 2).sum()), float((t**2).sum())
    if size == 0:
        return 0.0 if error == 0 else math.inf
    return math.sqrt(error / size)
