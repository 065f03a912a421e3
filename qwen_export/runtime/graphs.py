"""Run one graph of a package through IOBinding: host arrays or device values in, device values or host arrays out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qwen_export.contract import DECODER, TEXT, GraphContract, TensorSpec
from qwen_export.errors import InternalError, UsageError
from qwen_export.model_config import ModelConfig
from qwen_export.package import Package
from qwen_export.recipe import Recipe
from qwen_export.runtime.session import Device, Sessions, import_onnxruntime
from qwen_export.runtime.state import ELEMENT_TYPES, NUMPY_TYPES, to_numpy


class Graphs:
    """The graphs of one package on one device."""

    def __init__(self, package: Package, device: Device | None = None, threads: int | None = None) -> None:
        self.sessions = Sessions(package, device, threads)
        self.device = self.sessions.device
        self.config: ModelConfig = package.config
        self.recipe: Recipe = package.recipe
        self.decoder = TEXT if TEXT in package.components else DECODER
        self._contracts: dict[str, GraphContract] = {c: package.contract(c) for c in package.components}
        self._runtime = import_onnxruntime()

    def contract(self, component: str) -> GraphContract:
        """Names, dtypes and shapes of a component."""
        return self._contracts[component]

    def no_features(self) -> np.ndarray:
        """[0, D]: what the embedding takes when there is no picture."""
        return np.zeros((0, self.config.text.hidden_size), NUMPY_TYPES[self.recipe.tensor_dtype])

    def run(
        self,
        component: str,
        inputs: Mapping[str, Any],
        *,
        in_place: Mapping[str, Any] | None = None,
        to_host: frozenset[str] = frozenset(),
        shrink: bool = False,
    ) -> dict[str, Any]:
        """Run a graph; outputs stay on the device as OrtValues, except those named in `to_host` (also OrtValues).

        Args:
            inputs: input name -> numpy array (host) or OrtValue.
            in_place: output name -> OrtValue to write into.
            shrink: give the memory arena back afterwards; for runs whose size will not come again soon.
        """
        session = self.sessions.get(component)
        contract = self.contract(component)
        binding = session.io_binding()
        for spec in contract.inputs:
            binding.bind_ortvalue_input(spec.name, self._value(spec, inputs[spec.name]))
        for spec in contract.outputs:
            if in_place and spec.name in in_place:
                binding.bind_ortvalue_output(spec.name, in_place[spec.name])
            elif spec.name in to_host:
                binding.bind_output(spec.name, "cpu", 0)
            else:
                binding.bind_output(spec.name, self.device.provider, self.device.index)
        try:
            session.run_with_iobinding(binding, self._run_options(shrink))
        except Exception as error:  # ONNX Runtime raises bare RuntimeErrors for lack of memory and wrong shapes alike
            raise self._explained(component, error) from None
        outputs = dict(zip((spec.name for spec in contract.outputs), binding.get_outputs(), strict=True))
        # A new OrtValue around a caller's buffer would not keep that buffer alive.
        return {**outputs, **(in_place or {})}

    def run_to_host(self, component: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run a graph of changing size and copy every output to the host; bfloat16 as uint16 bits."""
        outputs = self.contract(component).outputs
        values = self.run(component, inputs, to_host=frozenset(spec.name for spec in outputs), shrink=True)
        return {spec.name: to_numpy(values[spec.name], spec.dtype) for spec in outputs}

    def _value(self, spec: TensorSpec, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        if value.dtype != NUMPY_TYPES[spec.dtype] or value.ndim != len(spec.shape):
            raise InternalError(f"{spec.name}: {value.dtype} {value.shape} given, {spec.dtype} {spec.shape} expected")
        contiguous = np.ascontiguousarray(value)
        return self._runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(contiguous, ELEMENT_TYPES[spec.dtype])

    def _run_options(self, shrink: bool) -> Any:
        if not shrink:
            return None
        options = self._runtime.RunOptions()
        arena = "cpu:0" if self.device.provider == "cpu" else f"gpu:{self.device.index};cpu:0"
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", arena)
        return options

    def _explained(self, component: str, error: Exception) -> Exception:
        message = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if "allocate memory" in message or "out of memory" in message.lower() or "bad_alloc" in message:
            return UsageError(
                f"The {component} ran out of memory on {self.device.provider}: {message} "
                "Use a smaller --max-pixels or --prefill-slice."
            )
        return InternalError(f"the {component} graph failed: {message}")
