"""The time-shift sampler: the denoiser gets the noise level that a sample's variance
implies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.config import CountOrZero, NonNegative, Probability
from world_models.samplers.base import Denoiser, Marching, Step, at, normal
from world_models.samplers.one_step import fresh_noise


@dataclass(frozen=True)
class TimeShift(Marching):
    """DDIM whose denoiser is called at a level near the due one (Alleviating Exposure Bias in
    Diffusion Models through Sampling with Shifted Time Steps, arXiv 2305.15583).

    After a step to level n, each sample's variance over its entries is compared with
    `data_variance` + sigma_m^2 for the levels m within `window` // 2 steps of n; the nearest is
    the level of the next call, until the levels reach `cutoff`. With window 0 it is DDIM.

    Differences: levels are those of x_0 + sigma n, so the paper's 1 - alpha_bar becomes the
    variance of the data plus sigma^2; the candidates are the levels of this run, not of training.
    """

    window: CountOrZero = 4  # levels around the due one, half on each side
    cutoff: NonNegative = 0.5  # no shift below this level
    data_variance: NonNegative = 1.0  # of the entries of one clean sample
    eta: Probability = 0.0  # share of fresh noise, as in DDIM

    def implied_level(self, x: Tensor, n: int, sigmas: Sequence[float]) -> Tensor:
        """The level [B] that the denoiser is called with at step n."""
        half = self.window // 2
        if n == 0 or half == 0 or sigmas[n] <= self.cutoff:
            return at(x, sigmas[n])
        near = [s for s in sigmas[max(0, n - half) : n + half + 1] if s > 0]
        levels = torch.tensor(near, dtype=x.dtype, device=x.device)
        variance = x.flatten(1).var(1, correction=0)
        away = (variance[:, None] - (self.data_variance + levels.square())).abs()
        return levels[away.argmin(1)]

    def stepper(
        self, denoise: Denoiser, sigmas: Sequence[float], generator: torch.Generator
    ) -> Step:
        def step(x: Tensor, n: int, now: float, then: float) -> Tensor:
            level = self.implied_level(x, n, sigmas)
            # A network that predicts noise has x and that level; its noise takes the step.
            shape = (-1, *[1] * (x.ndim - 1))
            noise = (x - denoise(x, level)) / level.view(shape)
            fresh = fresh_noise(now, then, self.eta)
            x = x + (math.sqrt(then**2 - fresh**2) - now) * noise
            return x + fresh * normal(x, generator) if fresh > 0 else x

        return step
