"""Standardised inputs."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

BLOCK = 1 << 22  # numbers that are in double precision at the same time


def moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation [D] of `values` [N, D] in double precision, a block of rows after
    the other; blocks are joined as by Chan, Golub and LeVeque, "Updating formulae and a pairwise
    algorithm for computing sample variances" (1979), equation 1.5."""
    blocks = iter(values.split(max(1, BLOCK // values.shape[1])))
    first = next(blocks).double()
    count, mean, variance = len(first), first.mean(0), first.var(0, correction=0)
    for block in blocks:
        block, before = block.double(), mean
        share = len(block) / (count + len(block))
        apart = block.mean(0) - before
        mean = before + share * apart
        spread = (1 - share) * variance + share * block.var(0, correction=0)
        variance = spread + share * (1 - share) * apart.square()
        count += len(block)
    return mean, variance.sqrt()


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
        """Mean and standard deviation of `values` [N, D]. To the latter `eps` is added, but not
        more than the deviation itself, so that columns in small units are seen, too."""
        mean, std = moments(values)
        self.mean.copy_(mean)
        self.std.copy_(torch.where(std < 1e-12, torch.ones_like(std), std + std.clamp(max=eps)))

    def forward(self, values: Tensor) -> Tensor:
        return (values - self.mean) / self.std

    def inverse(self, values: Tensor) -> Tensor:
        return values * self.std + self.mean
