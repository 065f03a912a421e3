"""A piece: an nn.Module traced on its own, whose every weight is declared with the binding that makes it.

A piece is built around an upstream module. It takes that module's parameters by name, arranges them as the graph wants
them (transposed, concatenated, `1 + w`) and forgets the module. On the meta device this moves no data; on a loaded
Transformers model the piece runs eagerly and can be compared with the original.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from qwen_export.bindings import Binding, Part
from qwen_export.errors import InternalError, UpstreamChanged


class Piece(nn.Module):
    """Base of all traced pieces.

    Attributes:
        bindings: weight name -> binding, in the order of declaration.
        constants: buffer name -> value, for numbers that come from the config and not from the checkpoint.
    """

    def __init__(self, upstream: Mapping[str, torch.Tensor], prefix: str) -> None:
        """Args:
        upstream: the parameters of the upstream module by their name inside it.
        prefix: canonical checkpoint key of that module, with its trailing dot.
        """
        super().__init__()
        self.bindings: dict[str, Binding] = {}
        self.constants: dict[str, np.ndarray] = {}
        self._upstream = {prefix + name: tensor for name, tensor in upstream.items()}
        self._unread = set(self._upstream)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Declared weights and constants are attributes by their name."""

    def weight(self, name: str, binding: Binding) -> None:
        """Declare a weight and give it its value."""
        value = evaluate(binding, self._upstream)
        if tuple(value.shape) != binding.shape:
            raise InternalError(f"Weight {name}: binding says shape {binding.shape}, parts give {tuple(value.shape)}.")
        self._unread -= set(binding.tensors)
        self.bindings[name] = binding
        self.register_parameter(name, nn.Parameter(value, requires_grad=False))

    def constant(self, name: str, value: np.ndarray) -> None:
        """Declare a small tensor that the config decides."""
        self.constants[name] = value
        device = next(iter(self._upstream.values())).device
        self.register_buffer(name, torch.as_tensor(value).to(device), persistent=False)

    def sealed(self) -> None:
        """Called last by every constructor: each upstream parameter must have been read."""
        if self._unread:
            raise UpstreamChanged(
                f"{type(self).__name__}: Transformers' module has parameters this exporter does not know: "
                f"{', '.join(sorted(self._unread))}. Install a Transformers version listed in docs/qualification.md."
            )
        del self._upstream, self._unread


def evaluate(binding: Binding, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Carry out a binding in torch, in the order given in `qwen_export.bindings`."""
    blocks = [_rows(part, binding, tensors) for part in binding.parts]
    value = torch.cat(blocks) if len(blocks) > 1 else blocks[0]
    if binding.transform == "one_plus":
        value = 1.0 + value.float()
    elif binding.transform in ("exp", "neg_exp"):
        value = value.float().exp() * (1 if binding.transform == "exp" else -1)
    if binding.transpose:
        value = value.t()
    return value.to(getattr(torch, binding.dtype)).reshape(binding.shape).contiguous()


def _rows(part: Part, binding: Binding, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if part.tensor is None:
        device = next(iter(tensors.values())).device
        return torch.full((part.count,), part.fill, device=device)
    if part.tensor not in tensors:
        raise UpstreamChanged(
            f"Transformers' module has no parameter {part.tensor}. Install a Transformers version listed in "
            "docs/qualification.md."
        )
    value = tensors[part.tensor]
    value = value.reshape(value.shape[0], -1) if value.ndim > 1 else value
    if part.group is not None:
        blocks, groups, pick = part.group
        value = value.reshape(blocks, groups, -1, *value.shape[1:])[:, pick].flatten(0, 1)
    return value * part.scale if part.scale != 1.0 else value
