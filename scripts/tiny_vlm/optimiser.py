"""Muon for the matrices inside the blocks, AdamW for everything else."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

MATRIX_RATE, OTHER_RATE = 0.02, 2e-3


class Muon(torch.optim.Optimizer):
    """Momentum whose matrix updates are made orthogonal by Newton-Schulz steps; equal shapes go through together."""

    def __init__(
        self, params: list[torch.nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One update."""
        for group in self.param_groups:
            alike = defaultdict(list)
            for param in group["params"]:
                if param.grad is not None:
                    alike[tuple(param.shape)].append(param)
            for (rows, columns), params in alike.items():
                updates = []
                for param in params:
                    state = self.state[param]
                    if "velocity" not in state:
                        state["velocity"] = torch.zeros_like(param)
                    velocity = state["velocity"]
                    velocity.lerp_(param.grad, 1 - group["momentum"])
                    updates.append(param.grad.lerp(velocity, group["momentum"]))
                scale = group["lr"] * max(1.0, rows / columns) ** 0.5
                for param, update in zip(params, _orthogonal(torch.stack(updates)), strict=True):
                    param.mul_(1 - group["lr"] * group["decay"]).add_(update.to(param.dtype), alpha=-scale)


def _orthogonal(x: torch.Tensor) -> torch.Tensor:
    """[n, rows, columns] with all singular values near one."""
    turned = x.shape[-2] > x.shape[-1]
    x = x.mT if turned else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if turned else x


def make_optimisers(model: torch.nn.Module, extra: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """One of each kind over the model and the training-only heads."""
    matrices, others = [], []
    for name, param in model.named_parameters():
        inside = ".layers." in name or ".blocks." in name
        (matrices if inside and param.ndim == 2 else others).append(param)
    others += list(extra.parameters())
    return [
        Muon(matrices, MATRIX_RATE),
        torch.optim.AdamW(others, OTHER_RATE, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.01),
    ]
