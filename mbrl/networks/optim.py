"""Optimiser helpers: fused Adam and one descent step."""

from collections.abc import Iterable

import torch
from torch import Tensor


def adam(parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
    """Adam in one fused kernel."""
    return torch.optim.Adam(parameters, lr=lr, fused=True)


def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step on `loss`; gradients are taken for this optimiser's parameters alone."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        p.grad = gradient
    optimiser.step()
