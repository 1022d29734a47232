"""Standardised inputs."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Normaliser(nn.Module):
    """Standardises `[..., D]`; the identity until `fit`. Constant dimensions get scale 1."""

    mean: Tensor
    std: Tensor

    __call__: Callable[..., Tensor]

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("std", torch.ones(dim))

    def fit(self, values: Tensor, eps: float = 0.0) -> None:
        """Mean and standard deviation (plus `eps`) of `values` [N, D]."""
        std = values.double().std(0, correction=0)
        std = torch.where(std < 1e-12, torch.ones_like(std), std + eps)
        self.mean.copy_(values.double().mean(0))
        self.std.copy_(std)

    def forward(self, values: Tensor) -> Tensor:
        return (values - self.mean) / self.std

    def inverse(self, values: Tensor) -> Tensor:
        return values * self.std + self.mean
