"""A world in closed form: Gaussian data, whose denoiser and probability flow are linear maps."""

from collections.abc import Callable

import torch
from torch import Tensor

MEAN = torch.tensor([0.5, -1.0, 2.0], dtype=torch.double)
FACTOR = torch.tensor([[1.0, 0.0, 0.0], [0.8, 0.5, 0.0], [-0.3, 0.4, 0.2]], dtype=torch.double)
COVARIANCE = FACTOR @ FACTOR.T
VALUES, VECTORS = torch.linalg.eigh(COVARIANCE)


def denoise(x: Tensor, sigma: Tensor) -> Tensor:
    """E[x_0 | x] = mean + C (C + sigma^2)^-1 (x - mean), for x [B, 3] and sigma [B]."""
    share = VALUES / (VALUES + sigma.square()[:, None])
    return MEAN + ((x - MEAN) @ VECTORS * share) @ VECTORS.T


def flow(x: Tensor, now: float, then: float) -> Tensor:
    """Where the probability flow takes x [B, 3] from level `now` to `then`: a principal component
    keeps its place in units of its own deviation."""
    factor = ((VALUES + then**2) / (VALUES + now**2)).sqrt()
    return MEAN + ((x - MEAN) @ VECTORS * factor) @ VECTORS.T


def pushed(sampler: Callable[..., Tensor], sigmas: list[float]) -> tuple[Tensor, Tensor]:
    """Mean and covariance that a sampler which is an affine map gives to the exact law at its
    first level, N(mean, C + sigma_0^2), without Monte-Carlo error."""
    points = torch.cat([torch.zeros(1, 3), torch.eye(3)]).double()
    out = sampler(denoise, points, sigmas, torch.Generator())
    origin, matrix = out[0], (out[1:] - out[0]).T
    first = COVARIANCE + sigmas[0] ** 2 * torch.eye(3).double()
    return origin + matrix @ MEAN, matrix @ first @ matrix.T
