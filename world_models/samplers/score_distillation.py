"""Samples by optimisation: what is asked for is moved until the denoiser has nothing to correct,
along one fixed noise (Consistent3D) or along fresh ones (score distillation sampling)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from mbrl.config import Count, Positive, Range, Settings
from mbrl.errors import ConfigError
from mbrl.native.adam import Adam
from world_models.samplers.base import Before, Denoiser, check_levels, normal


def consistency_direction(
    denoise: Denoiser, y: Tensor, noise: Tensor, high: Tensor, low: Tensor
) -> Tensor:
    """Where `y` [B, ...] is to move: n(z_s) - n(z_t) [B, ...] with n the noise that the denoiser
    sees, z_t = y + sigma_t `noise` at the level `high` [B], and z_s the point at `low` [B] that one
    step of the probability flow leads to from there. It equals (D(z_t) - D(z_s)) / sigma_s."""
    shape = (-1, *[1] * (y.ndim - 1))
    t, s = high.view(shape), low.view(shape)
    above = y + t * noise
    seen = (above - denoise(above, high)) / t
    below = above + (s - t) * seen
    return (below - denoise(below, low)) / s - seen


@dataclass(frozen=True)
class ScoreDistillation(Settings):
    """Samples as the end of `updates` steps of Adam along a direction that a denoiser gives.

    With `consistent` as in Consistent3D (arXiv 2401.09050): the noise is the same in all updates,
    so that a start has one end, and the direction is `consistency_direction` between a level
    sigma_s, which falls from the first to the last above 0 of the call, and sigma_t, higher by a
    factor drawn from `ratio`. Without it score distillation sampling (DreamFusion, arXiv
    2209.14988): the direction (D(y + sigma_t n) - y) / sigma_t with fresh noise n every time.

    Not a sampler of the data's distribution: it looks for places of high density, and what it
    finds differs less from start to start than the data do. `x` of a call gives the fixed noise;
    starts are drawn from a standard normal distribution. As the two denoised values come near each
    other the direction vanishes, so that `ratio` must stay well above 1.
    """

    consistent: bool = True
    updates: Count = 100
    learning_rate: Positive = 0.05  # Adam
    ratio: tuple[Annotated[float, Range(float, "(1, 100]")], Positive] = (1.5, 3.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ratio[0] > self.ratio[1]:
            raise ConfigError(f"ratio is {self.ratio}; give the smaller factor first")

    def evaluations(self, steps: int) -> int:
        """Calls of the denoiser, whatever the number of levels."""
        return self.updates * (2 if self.consistent else 1)

    @torch.no_grad()
    def __call__(
        self,
        denoise: Denoiser,
        x: Tensor,
        sigmas: Sequence[float],
        generator: torch.Generator,
        *,
        before: Before | None = None,
    ) -> Tensor:
        if before is not None:
            raise ConfigError("score distillation takes guidance from the denoiser, not as moves")
        check_levels(sigmas)
        noise = x / sigmas[0]
        y = normal(x, generator).requires_grad_()
        optimiser = Adam([y], lr=self.learning_rate)
        ends = [math.log(sigma) for sigma in (sigmas[0], min(s for s in sigmas if s > 0))]
        for update in range(self.updates):
            low = math.exp(ends[0] + (ends[1] - ends[0]) * update / self.updates)
            s = torch.full((len(x),), low, device=x.device, dtype=x.dtype)
            factor = torch.rand(len(x), generator=generator, device=x.device, dtype=x.dtype)
            t = s * (self.ratio[0] + (self.ratio[1] - self.ratio[0]) * factor)
            if self.consistent:
                direction = consistency_direction(denoise, y, noise, t, s)
            else:
                shape = (-1, *[1] * (x.ndim - 1))
                noisy = y + t.view(shape) * normal(x, generator)
                direction = (denoise(noisy, t) - y) / t.view(shape)
            y.grad = -direction
            optimiser.step()
        return y.detach()
