"""Denoisers for samples of which some entries are given, such as the state that a window begins in.
As in "Planning with Diffusion for Flexible Behavior Synthesis" (arXiv 2205.09991) these have their
values at every level, in the fit and in samples."""

import copy

import torch
from torch import Tensor, nn

from algorithms.diffusion_rl.chains import Fixed, like, require_fixed
from mbrl.errors import DataError
from mbrl.native.adam import Adam
from world_models.trajectory_diffusion import precondition


def conditional_loss(
    network: nn.Module, x: Tensor, sigma: Tensor, noise: Tensor, mask: Tensor
) -> Tensor:
    """EDM's weighted denoising error of x, noise [B, ...] at levels sigma [B], the mean over the
    entries that are not in `mask` [...], while those in it are given as they are."""
    noisy = torch.where(mask, x, x + like(sigma, x) * noise)
    error = (precondition(network, noisy, sigma) - x).square()
    error = error * like(1.0 + 1.0 / sigma.square(), x) * ~mask
    return error.sum() / (len(x) * (~mask).sum())


def fit_conditional(
    network: nn.Module,
    samples: Tensor,
    mask: Tensor,
    updates: int,
    generator: torch.Generator,
    *,
    learning_rate: float = 2e-3,
    batch_size: int = 64,
) -> nn.Module:
    """A copy of a denoiser, fitted on with the entries in `mask` [...] of `samples` [N, ...] given:
    `updates` steps of Adam, whose rate falls to 0 as a cosine. Raises `ConfigError` for a mask that
    is none or leaves nothing, `DataError` for samples that are not finite."""
    require_fixed(Fixed(mask, samples), len(samples), tuple(samples.shape[1:]))
    if not bool(samples.isfinite().all()):
        raise DataError("samples have entries that are not finite; leave such windows out")
    own = copy.deepcopy(network).requires_grad_(True)
    optimiser = Adam(own.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, updates)
    for _ in range(updates):
        rows = torch.randint(len(samples), (batch_size,), generator=generator)
        x = samples[rows]
        sigma = (-1.2 + 1.2 * torch.randn(len(x), generator=generator)).exp().to(x)
        noise = torch.randn(x.shape, generator=generator).to(x)
        optimiser.zero_grad()
        conditional_loss(own, x, sigma, noise, mask).backward()
        optimiser.step()
        schedule.step()
    return own.requires_grad_(False)
