"""What a sampler is: a denoiser, a batch of noise and noise levels in, samples out. Levels follow
EDM (Elucidating the Design Space of Diffusion-Based Generative Models, arXiv 2206.00364):
x = x_0 + sigma n, and the denoiser is the mean of x_0 given x."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from mbrl.config import Settings
from mbrl.errors import ConfigError

Denoiser = Callable[[Tensor, Tensor], Tensor]  # x [B, ...], sigma [B] to D(x; sigma) [B, ...]
Before = Callable[[Tensor, int, Sequence[float]], Tensor]  # x, step, levels to x, before the step
Step = Callable[[Tensor, int, float, float], Tensor]  # x, step, its level, the next level to x


class Sampler(Protocol):
    """A variance-preserving process with signal alpha and noise s is the same thing at x / alpha
    and sigma = s / alpha, so every published solver has this form."""

    def __call__(
        self,
        denoise: Denoiser,
        x: Tensor,
        sigmas: Sequence[float],
        generator: torch.Generator,
        *,
        before: Before | None = None,
    ) -> Tensor:
        """Samples [B, ...] at the last level from `x` [B, ...] at the first; `sigmas` fall, and the
        last may be 0. `before` may move x ahead of every step (guidance does). Raises `ConfigError`
        for levels that do not fall."""
        ...

    def evaluations(self, steps: int) -> int:
        """Calls of the denoiser in `steps` steps, the last of which ends at 0."""
        ...


def edm_levels(
    steps: int, *, sigma_max: float = 80.0, sigma_min: float = 0.002, rho: float = 7.0
) -> list[float]:
    """sigma_n = (max^(1/rho) + n / (steps - 1) (min^(1/rho) - max^(1/rho)))^rho for n < steps, then
    0 (EDM, eq. 5): `steps` + 1 levels."""
    if steps < 1:
        raise ConfigError(f"steps is {steps}, it must be at least 1")
    if not 0 < sigma_min < sigma_max or rho <= 0:
        raise ConfigError(
            f"sigma_min is {sigma_min}, sigma_max {sigma_max}, rho {rho}; they must satisfy "
            "0 < sigma_min < sigma_max and rho > 0"
        )
    high, low = sigma_max ** (1 / rho), sigma_min ** (1 / rho)
    shares = [n / max(1, steps - 1) for n in range(steps)]
    return [(high + share * (low - high)) ** rho for share in shares] + [0.0]


def check_levels(sigmas: Sequence[float]) -> None:
    """Raise `ConfigError` unless the levels fall, and only the last is 0."""
    if len(sigmas) < 2:
        raise ConfigError(f"there are {len(sigmas)} noise levels, at least 2 are needed")
    falls = all(math.isfinite(a) and a > b for a, b in pairwise(sigmas))
    if not falls or sigmas[-1] < 0:
        raise ConfigError(
            f"noise levels {list(sigmas)[:8]} must fall strictly, and only the last may be 0"
        )


def at(x: Tensor, sigma: float) -> Tensor:
    """The level as a denoiser takes it, [B]."""
    return x.new_full((x.shape[0],), sigma)


class Marching(Settings, ABC):
    """A sampler that is a step, repeated from level to level."""

    @abstractmethod
    def stepper(
        self, denoise: Denoiser, sigmas: Sequence[float], generator: torch.Generator
    ) -> Step:
        """The step of one march; what it remembers of earlier steps is its own."""

    def __call__(
        self,
        denoise: Denoiser,
        x: Tensor,
        sigmas: Sequence[float],
        generator: torch.Generator,
        *,
        before: Before | None = None,
    ) -> Tensor:
        """As `Sampler` has it."""
        check_levels(sigmas)
        step = self.stepper(denoise, sigmas, generator)
        for n, (now, then) in enumerate(pairwise(sigmas)):
            if before is not None:
                x = before(x, n, sigmas)
            x = step(x, n, now, then)
        return x

    def evaluations(self, steps: int) -> int:
        """One a step, unless a sampler says otherwise."""
        return steps


def normal(x: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal draws in the shape of x."""
    return torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
