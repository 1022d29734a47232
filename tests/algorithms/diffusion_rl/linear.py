"""A denoiser whose chains are normal: EDM's preconditioning of data of deviation 1, whose network
says the same everywhere (0: the denoiser of a standard normal distribution)."""

import torch
from torch import Tensor, nn

from world_models.samplers.base import edm_levels

SIGMAS = edm_levels(6, sigma_max=10.0, sigma_min=0.05)


class Constant(nn.Module):
    def __init__(self, size: int = 1, value: float = 0.0) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.full((size,), value, dtype=torch.float64))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        return self.value.to(x).expand_as(x)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def moments(value: float, eta: float) -> tuple[float, float]:
    """Mean and variance of a sample of one entry, from the recursion of the levels: a step is
    x' = k x + (1 - k) D(x) + f n with D(x) = x / (1 + s^2) + s / sqrt(1 + s^2) value."""
    mean, variance = 0.0, SIGMAS[0] ** 2
    for now, then in zip(SIGMAS[:-1], SIGMAS[1:], strict=True):
        fresh = eta * then * (1 - (then / now) ** 2) ** 0.5
        keep = (then**2 - fresh**2) ** 0.5 / now
        slope, shift = 1 / (1 + now**2), now / (1 + now**2) ** 0.5 * value
        factor = keep + (1 - keep) * slope
        mean = factor * mean + (1 - keep) * shift
        variance = factor**2 * variance + fresh**2
    return mean, variance
