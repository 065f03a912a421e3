"""The single-token graph: one row without padding, a static cache, every buffer at a fixed place.

On CUDA its launches are captured once and replayed, so a decode step costs what the card needs for it. A captured graph
reads and writes the addresses it was captured with; therefore one set of state buffers is kept, and lent to one
conversation at a time. Prefill writes into the same buffers: the decoder reads every past state before it writes the
present one.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from qwen_export.contract import BATCH, BFLOAT16, DECODER, EMBEDDING, INT64, StateSpec
from qwen_export.runtime.graphs import Graphs
from qwen_export.runtime.session import Device
from qwen_export.runtime.state import NUMPY_TYPES, State, to_device, to_numpy


class Lease:
    """The right to use the buffers; they are free again when the last State that carries it is gone."""


class DecodeStep:
    """Decodes one token at a time through `decoder/decode.onnx`.

    Args:
        graphs: of a package that has the graph.
        specs: the decoder's states.
    """

    def __init__(self, graphs: Graphs, specs: Sequence[StateSpec]) -> None:
        self._graphs, self._specs = graphs, tuple(specs)
        self._contract = graphs.sessions.package.contract(DECODER, single_step=True)
        self._session = graphs.sessions.open_decode_graph()
        self._lease: weakref.ref[Lease] | None = None
        self._buffers = {
            spec.name: to_device(self._zeros(spec.shape, spec.dtype), spec.dtype, graphs.device)
            for spec in (*self._contract.inputs, self._contract.outputs[0])
        }
        self._binding = self._bind()
        # the first run is repeated while it is captured, so it must not be one that counts
        self._set_mask(1)
        self._session.run_with_iobinding(self._binding)

    def empty_state(self) -> State | None:
        """States of one row that has seen nothing, in the fixed buffers; None while they are lent."""
        if self._lease and self._lease() is not None:
            return None
        lease = Lease()
        self._lease = weakref.ref(lease)
        for spec in self._specs:
            if spec.kind not in ("key", "value"):  # of the cache only what has been written is read
                self._write(spec.past.name, self._zeros(spec.past.shape, spec.past.dtype), spec.past.dtype)
        values = {spec.past.name: self._buffers[spec.past.name] for spec in self._specs}
        empty = np.zeros((1, 0), np.int64)
        return State(values, empty, np.zeros(1, np.int64), self._specs, self._graphs.device, lease)

    def serves(self, state: State) -> bool:
        """Whether the next token of this state can go through the graph."""
        return isinstance(state.owner, Lease) and self._lease is not None and self._lease() is state.owner

    def run(self, token: np.ndarray, length: int, position: np.ndarray) -> np.ndarray:
        """Feed one token [1, 1]; the states are updated in place.

        Args: length: T, tokens after this one. position: int64 [3, 1, 1].

        Returns: logits [1, 1, V].
        """
        embeds = {"inputs_embeds": self._buffers["inputs_embeds"]}
        features = self._graphs.no_features()
        self._graphs.run(EMBEDDING, {"input_ids": token, "image_features": features}, in_place=embeds)
        self._set_mask(length)
        self._buffers["position_ids"].update_inplace(position)
        self._session.run_with_iobinding(self._binding)
        logits = self._contract.outputs[0]
        return to_numpy(self._buffers[logits.name], logits.dtype)

    def _set_mask(self, length: int) -> None:
        mask = self._zeros(self._contract.inputs[1].shape, INT64)
        mask[:, :length] = 1
        self._buffers["attention_mask"].update_inplace(mask)

    def _bind(self) -> Any:
        binding = self._session.io_binding()
        for spec in self._contract.inputs:
            binding.bind_ortvalue_input(spec.name, self._buffers[spec.name])
        binding.bind_ortvalue_output("logits", self._buffers["logits"])
        for state in self._specs:
            binding.bind_ortvalue_output(state.present.name, self._buffers[state.past.name])
        return binding

    def _zeros(self, shape: tuple[int | str, ...], dtype: str) -> np.ndarray:
        return np.zeros([{BATCH: 1}[axis] if isinstance(axis, str) else axis for axis in shape], NUMPY_TYPES[dtype])

    def _write(self, name: str, array: np.ndarray, dtype: str) -> None:
        host = to_device(array, dtype, Device()) if dtype == BFLOAT16 else array
        self._buffers[name].update_inplace(host)
