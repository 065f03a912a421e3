"""Two ways to run a package's graphs with inner values as extra outputs: ONNX Runtime, and onnx's evaluator.

Half precision is judged where it is computed in half: on CUDA, or by the evaluator. ONNX Runtime's CPU provider would
compute fp16 graphs in float32 and has no bf16 kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import onnx

from qwen_export.contract import BFLOAT16, FLOAT32, GraphContract
from qwen_export.errors import InternalError, PackageError, UsageError
from qwen_export.package import Package
from qwen_export.runtime.session import PROVIDERS, Device, Sessions, import_onnxruntime
from qwen_export.runtime.state import ELEMENT_TYPES, to_numpy
from qwen_export.verify.half_evaluator import HalfEvaluator
from qwen_export.verify.layer_outputs import add_outputs, layer_outputs

Arrays = dict[str, np.ndarray]
EVALUATOR_LIMIT = 2**30
"""Bytes of a component's weights above which numpy would take hours."""
NUMPY = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "int64": np.int64}


class Runner(Protocol):
    """Runs the graphs of one package."""

    label: str
    """How it computes, for the report."""

    def layers(self, component: str) -> dict[int, str]:
        """Layer -> name of its output, which `run` gives too when asked."""

    def run(self, component: str, inputs: Mapping[str, np.ndarray], extra: Sequence[str] = ()) -> Arrays:
        """Outputs of the contract and the `extra` values, by name; bfloat16 as `ml_dtypes.bfloat16`."""

    def close(self, component: str) -> None:
        """Let a component's weights go."""


def open_runner(package: Package, provider: str) -> Runner:
    """The runner that judges this package on this provider.

    Raises:
        UsageError: nothing here computes the package in its own precision.
    """
    if provider not in PROVIDERS:
        raise UsageError(f"Unknown provider {provider!r}. Known: {', '.join(PROVIDERS)}.")
    package.require_weights("verify")
    dtype = package.recipe.tensor_dtype
    if provider != "cpu" or dtype == FLOAT32:
        return OnnxRuntimeRunner(package, Device(provider))
    largest = max(package.data_path(component).stat().st_size for component in package.components)
    if largest <= EVALUATOR_LIMIT:
        return EvaluatorRunner(package)
    if dtype == BFLOAT16:
        raise UsageError(
            "ONNX Runtime has no bf16 kernels on the CPU, so this bf16 package cannot be verified there: use "
            "--provider cuda."
        )
    raise UsageError(
        "ONNX Runtime's CPU provider computes an fp16 package in fp32, which proves nothing about fp16, and this one "
        "is too large for onnx's reference evaluator: use --provider cuda."
    )


class OnnxRuntimeRunner:
    """ONNX Runtime, one session per component."""

    def __init__(self, package: Package, device: Device) -> None:
        self._package, self._device = package, device
        self._sessions = Sessions(package, device, whole=False)
        self._open: dict[str, tuple[Any, dict[int, str]]] = {}
        name = PROVIDERS[device.provider]
        self.label = f"ONNX Runtime {import_onnxruntime().__version__}, {name}"

    def layers(self, component: str) -> dict[int, str]:
        return self._session(component)[1]

    def run(self, component: str, inputs: Mapping[str, np.ndarray], extra: Sequence[str] = ()) -> Arrays:
        session = self._session(component)[0]
        binding = session.io_binding()
        types = {value.name: _tensor_dtype(value.type) for value in (*session.get_inputs(), *session.get_outputs())}
        held = {value.name: self._value(inputs[value.name], types[value.name]) for value in session.get_inputs()}
        for name, value in held.items():
            binding.bind_ortvalue_input(name, value)
        wanted = [*(spec.name for spec in self._package.contract(component).outputs), *extra]
        for name in wanted:
            binding.bind_output(name, "cpu", 0)
        try:
            session.run_with_iobinding(binding)
        except Exception as error:  # ONNX Runtime raises bare RuntimeErrors
            raise PackageError(f"The {component} graph failed: {str(error).splitlines()[0]}") from None
        return {name: _as_array(v, types[name]) for name, v in zip(wanted, binding.get_outputs(), strict=True)}

    def close(self, component: str) -> None:
        self._open.pop(component, None)

    def _session(self, component: str) -> tuple[Any, dict[int, str]]:
        if component not in self._open:
            path = self._package.graph_path(component)
            model = load_graph(path)
            layers = layer_outputs(model.graph)
            add_outputs(model, layers.values())
            self._open[component] = self._sessions.open_graph(component, model.SerializeToString(), path.parent), layers
        return self._open[component]

    def _value(self, array: np.ndarray, dtype: str) -> Any:
        if array.dtype != NUMPY[dtype]:
            raise InternalError(f"{array.dtype} given, {dtype} expected")
        plain = np.ascontiguousarray(array.view(np.uint16) if dtype == BFLOAT16 else array)
        return import_onnxruntime().OrtValue.ortvalue_from_numpy_with_onnx_type(plain, ELEMENT_TYPES[dtype])


class EvaluatorRunner:
    """onnx's reference evaluator with a GPU's roundings."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._open: dict[str, tuple[HalfEvaluator, dict[int, str]]] = {}
        dtype = package.recipe.dtype
        self.label = f"onnx {onnx.__version__} reference evaluator, {dtype} with one rounding an operator"

    def layers(self, component: str) -> dict[int, str]:
        return self._evaluator(component)[1]

    def run(self, component: str, inputs: Mapping[str, np.ndarray], extra: Sequence[str] = ()) -> Arrays:
        evaluator = self._evaluator(component)[0]
        contract: GraphContract = self._package.contract(component)
        wanted = [*(spec.name for spec in contract.outputs), *extra]
        try:
            with np.errstate(all="ignore"):
                found = evaluator.run(wanted, {spec.name: inputs[spec.name] for spec in contract.inputs})
        except (ValueError, TypeError, IndexError, RuntimeError, AssertionError) as error:
            raise PackageError(f"The {component} graph failed: {str(error).splitlines()[0]}") from None
        return dict(zip(wanted, found, strict=True))

    def close(self, component: str) -> None:
        self._open.pop(component, None)

    def _evaluator(self, component: str) -> tuple[HalfEvaluator, dict[int, str]]:
        if component not in self._open:
            model = load_graph(self._package.graph_path(component), weights=True)
            self._open[component] = HalfEvaluator(model), layer_outputs(model.graph)
        return self._open[component]


def load_graph(path: Path, weights: bool = False) -> onnx.ModelProto:
    """A graph file; its weights only if asked for.

    Raises:
        PackageError: it cannot be read.
    """
    try:
        return onnx.load(path, load_external_data=weights)
    except Exception as error:  # protobuf and onnx raise their own kinds
        raise PackageError(f"{path} cannot be read as an ONNX graph ({error}). Export the package again.") from None


def _tensor_dtype(onnx_type: str) -> str:
    """`tensor(float16)` -> `float16`."""
    inner = onnx_type.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32"}.get(inner, inner)


def _as_array(value: Any, dtype: str) -> np.ndarray:
    array = to_numpy(value, dtype)
    return array.view(ml_dtypes.bfloat16) if dtype == BFLOAT16 else array
