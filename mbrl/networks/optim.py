"""Optimiser helpers: fused Adam and one descent step."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from mbrl.native.adam import Adam, adam_step


def adam(parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
    """Adam in one fused kernel."""
    return Adam(parameters, lr=lr, fused=True)


def descend(optimiser: torch.optim.Optimizer, loss: Tensor, clip: float | None = None) -> None:
    """One step on `loss`; gradients are taken for this optimiser's parameters alone. With `clip`
    their entries that are not numbers become 0 and their norm is at most `clip`."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    gradients = torch.autograd.grad(loss, parameters)
    step(optimiser, gradients if clip is None else clipped(gradients, clip))


def clipped(gradients: Sequence[Tensor], most: float) -> list[Tensor]:
    """Copies with 0 for what is not a number, scaled so that their common norm is at most `most`,
    as `torch.nn.utils.clip_grad_norm_` scales."""
    flat = torch.cat([g.flatten() for g in gradients]).nan_to_num_(0.0, 0.0, 0.0)
    flat *= (most / (flat.norm() + 1e-6)).clamp_max(1.0)
    parts = flat.split([g.numel() for g in gradients])
    return [part.view(g.shape) for part, g in zip(parts, gradients, strict=True)]


def step(optimiser: torch.optim.Optimizer, gradients: Sequence[Tensor]) -> None:
    """One step of `optimiser` with these gradients of its parameters, in their order."""
    if adam_step(optimiser, gradients):
        return
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for p, gradient in zip(parameters, gradients, strict=True):
        p.grad = gradient
    optimiser.step()
