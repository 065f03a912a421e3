"""Open ONNX Runtime sessions for a package: one per component, the vision encoder only when it is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from qwen_export.contract import BFLOAT16, DECODER, EMBEDDING, TEXT
from qwen_export.errors import PackageError, UsageError
from qwen_export.package import Package
from qwen_export.package.graphs import DECODE_GRAPH

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
"""Command-line name -> ONNX Runtime's name."""
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
"""Session option: where the external data of a graph in memory lies."""


@dataclass(frozen=True)
class Device:
    """Where graphs run and states live."""

    provider: str = "cpu"
    """`cpu` or `cuda`."""
    index: int = 0


class Sessions:
    """The sessions of one package on one device.

    Raises on construction:
        UsageError: ONNX Runtime or the provider is missing, or cannot compute the package's dtype.
        PackageError: the package has no weights.
    """

    def __init__(
        self, package: Package, device: Device | None = None, threads: int | None = None, *, whole: bool = True
    ) -> None:
        """Args: whole: the package must have all that an answer needs; False for looking at single components."""
        self.package = package
        self.device = device or Device()
        self._threads = threads
        self._runtime = import_onnxruntime()
        self._open: dict[str, Any] = {}
        self._weights: dict[str, Any] | None = None
        check_runnable(package, self.device, whole=whole)
        _check_provider(self._runtime, self.device)

    @property
    def decoder_component(self) -> str:
        """`decoder`, or `text` for a text-only package."""
        return TEXT if TEXT in self.package.components else DECODER

    def get(self, component: str) -> Any:
        """The session of a component, opened on first use."""
        if component not in self._open:
            self._open[component] = self._create(component)
        return self._open[component]

    def is_open(self, component: str) -> bool:
        """Whether a component's session has been opened."""
        return component in self._open

    def _create(self, component: str) -> Any:
        if component not in self.package.components:
            raise PackageError(
                f"{self.package.folder} has no {component} (it holds {', '.join(self.package.components)}). "
                "Export the missing component into it."
            )
        return self.open_graph(component, str(self.package.graph_path(component)))

    def open_decode_graph(self) -> Any:
        """The session of the single-token decoder graph; on CUDA its launches are captured and replayed."""
        path = self.package.decode_graph
        if path is None:
            raise PackageError(f"{self.package.folder} has no {DECODE_GRAPH}. Export with --decode-graph.")
        capture = {"enable_cuda_graph": "1"} if self.device.provider == "cuda" else {}
        return self.open_graph(DECODER, str(path), cuda=capture)

    def open_graph(
        self,
        component: str,
        graph: str | bytes,
        weights_folder: Path | None = None,
        cuda: Mapping[str, str] | None = None,
    ) -> Any:
        """A session of a graph file, or of a changed graph in memory whose weights lie in `weights_folder`."""
        wanted = PROVIDERS[self.device.provider]
        providers: list[Any] = [PROVIDERS["cpu"]]
        if self.device.provider == "cuda":
            settings = {**self.package.recipe.session.cuda, **(cuda or {}), "device_id": str(self.device.index)}
            providers.insert(0, (wanted, settings))
        options = self._options()
        if weights_folder is None and component == DECODER:
            for name, value in self._shared_weights().items():
                options.add_initializer(name, value)
        if weights_folder is not None:
            options.add_session_config_entry(WEIGHTS_FOLDER, str(weights_folder))
        try:
            session = self._runtime.InferenceSession(graph, options, providers=providers)
        except Exception as error:  # ONNX Runtime raises its own classes and bare RuntimeErrors
            path = self.package.graph_path(component)
            raise PackageError(f"ONNX Runtime cannot open the {component} ({path}): {_first_line(error)}") from None
        if wanted not in session.get_providers():
            raise UsageError(
                f"ONNX Runtime could not start {wanted} for the {component} and fell back to the CPU. Check the "
                "NVIDIA driver and that CUDA 13 and cuDNN 9 are found, or use --provider cpu."
            )
        return session

    def _shared_weights(self) -> dict[str, Any]:
        """The decoder's weights on the card, once for its two graphs; empty where there is nothing to share."""
        from qwen_export.runtime.shared_weights import load_weights  # which needs this module

        if self._weights is None:
            share = self.package.decode_graph is not None and self.device.provider == "cuda"
            path = self.package.graph_path(DECODER) if share else None
            self._weights = (load_weights(path, self.device) if path else None) or {}
        return self._weights

    def _options(self) -> Any:
        options = self._runtime.SessionOptions()
        options.log_severity_level = 3
        options.enable_mem_pattern = False  # a pattern is kept per input shape, and every decode step has a new one
        if self._threads:
            options.intra_op_num_threads = self._threads
        for key, value in self.package.recipe.session.session.items():
            options.add_session_config_entry(key, value)
        return options


@cache
def import_onnxruntime() -> Any:
    """ONNX Runtime, or one sentence about what to install or remove."""
    if overwrite_each_other("onnxruntime", "onnxruntime-gpu"):
        raise UsageError(
            "Both onnxruntime and onnxruntime-gpu are installed; they overwrite each other's files. Uninstall both, "
            "then install one: pip install 'qwen-export[cpu]' or 'qwen-export[gpu]'."
        )
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError(
            f"Running a package needs ONNX Runtime ({error}): pip install 'qwen-export[cpu]' or 'qwen-export[gpu]'."
        ) from None
    return onnxruntime


def check_runnable(package: Package, device: Device, *, whole: bool = True) -> None:
    """Refuse what cannot run, before any session is made."""
    if device.provider not in PROVIDERS:
        raise UsageError(f"Unknown provider {device.provider!r}. Known: {', '.join(PROVIDERS)}.")
    package.require_weights("run")
    missing = [c for c in (EMBEDDING, DECODER) if c not in package.components]
    if whole and missing and TEXT not in package.components:
        raise PackageError(
            f"{package.folder} has no {' and no '.join(missing)}, so it cannot answer. Export what is missing into it."
        )
    if package.recipe.tensor_dtype == BFLOAT16 and device.provider == "cpu":
        raise UsageError(
            "ONNX Runtime has no bf16 kernels on the CPU, so a bf16 package cannot run there: use --provider cuda, or "
            "export with --dtype fp16 or fp32."
        )


def _check_provider(runtime: Any, device: Device) -> None:
    wanted, available = PROVIDERS[device.provider], runtime.get_available_providers()
    if device.provider == "cuda" and wanted in available and hasattr(runtime, "preload_dlls"):
        runtime.preload_dlls()  # finds CUDA and cuDNN where pip put them
    if wanted not in available:
        kinds = ", ".join(name for name, full in PROVIDERS.items() if full in available)
        raise UsageError(
            f"Provider {device.provider!r} is not in the installed ONNX Runtime (it has: {kinds}). For NVIDIA GPUs: "
            "pip uninstall onnxruntime, then pip install 'qwen-export[gpu]'."
        )


def overwrite_each_other(*names: str) -> bool:
    """Whether several of these distributions share a folder; in different folders the first on the path simply wins."""
    places = []
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            places.append(str(metadata.distribution(name).locate_file("")))
    return len(places) > len(set(places))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
