"""Samplers of one or few steps, distilled from a denoiser with a deterministic or a stochastic
teacher."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mbrl.config import Count, Positive, Probability, Settings, Several, Share
from mbrl.errors import ConfigError
from mbrl.native.adam import Adam
from mbrl.networks import polyak_update
from world_models.samplers.base import Denoiser, Marching, Step, at, normal
from world_models.samplers.one_step import heun_step, stochastic_step

M = TypeVar("M", bound=nn.Module)
Teacher = Literal["ode", "sde"]


def consistency_function(
    network: nn.Module, x: Tensor, sigma: Tensor, sigma_min: float, deviation: float = 1.0
) -> Tensor:
    """f(x, sigma) [B, ...], the end of the path through x, which is x at `sigma_min` (Consistency
    Models, arXiv 2303.01469, appendix C); `network` takes x over its deviation and ln(sigma) / 4,
    `deviation` is that of the data."""
    s = sigma.view(-1, *[1] * (x.ndim - 1))
    skip = deviation**2 / ((s - sigma_min).square() + deviation**2)
    norm = (s.square() + deviation**2).sqrt()
    out: Tensor = network(x / norm, sigma.log() / 4.0)
    return skip * x + deviation * (s - sigma_min) / norm * out


@dataclass(frozen=True)
class DistillationConfig(Settings):
    """Settings of consistency distillation."""

    teacher: Teacher = "ode"  # Heun's step, or DDIM's with noise
    eta: Probability = 0.5  # share of fresh noise in the teacher's steps (sde alone)
    substeps: Count = 1  # of the teacher between neighbouring levels
    levels: Several = 18  # N, of the schedule
    sigma_max: Positive = 80.0
    sigma_min: Positive = 0.002
    rho: Positive = 7.0  # of the schedule
    updates: Count = 2000  # gradient steps
    batch_size: Count = 256  # samples an update
    learning_rate: Positive = 1e-3  # Adam
    ema: Share = 0.95  # of the target network
    deviation: Positive = 1.0  # of the data

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sigma_min >= self.sigma_max:
            raise ConfigError(
                f"sigma_min is {self.sigma_min}, it must lie below sigma_max, {self.sigma_max}"
            )

    def schedule(self) -> list[float]:
        """Levels that fall from `sigma_max` to `sigma_min`."""
        low, high = self.sigma_min ** (1 / self.rho), self.sigma_max ** (1 / self.rho)
        shares = [n / (self.levels - 1) for n in range(self.levels)]
        return [(high + share * (low - high)) ** self.rho for share in shares]


def teacher_step(
    denoise: Denoiser,
    x: Tensor,
    now: float,
    then: float,
    config: DistillationConfig,
    generator: torch.Generator,
) -> Tensor:
    """From one level to the next in `substeps` geometric steps. With noise it is SCott's teacher
    (SCott: Accelerating Diffusion Models with Stochastic Consistency Distillation,
    arXiv 2403.01505), without it that of consistency models."""
    for part in range(config.substeps):
        a, b = (now * (then / now) ** ((part + k) / config.substeps) for k in (0, 1))
        if config.teacher == "ode":
            x = heun_step(denoise, x, a, b)
        else:
            x = stochastic_step(x, denoise(x, at(x, a)), a, b, config.eta, generator)
    return x


def distil(
    denoise: Denoiser,
    network: M,
    data: Tensor,
    config: DistillationConfig,
    generator: torch.Generator,
) -> M:
    """Train a copy of `network` as a consistency function of the teacher `denoise` on clean samples
    `data` [N, ...]: f at a noisy sample is pulled to the averaged f at the teacher's next one.
    Returns the average."""
    student, target = copy.deepcopy(network), copy.deepcopy(network).requires_grad_(False)
    optimiser = Adam(student.parameters(), lr=config.learning_rate)
    levels, device = config.schedule(), generator.device
    shape = (config.updates,)
    parts = torch.randint(len(levels) - 1, shape, generator=generator, device=device).tolist()
    for n in parts:
        rows = torch.randint(
            len(data), (config.batch_size,), generator=generator, device=generator.device
        )
        now, then = levels[n], levels[n + 1]
        x = data[rows.to(data.device)]
        x = x + now * normal(x, generator)
        with torch.no_grad():
            after = teacher_step(denoise, x, now, then, config, generator)
            goal = consistency_function(
                target, after, at(x, then), config.sigma_min, config.deviation
            )
        guess = consistency_function(student, x, at(x, now), config.sigma_min, config.deviation)
        loss = F.huber_loss(guess, goal, delta=0.03 * math.sqrt(x[0].numel()))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        polyak_update(target, student, 1.0 - config.ema)
    return target


@dataclass(frozen=True)
class Consistency(Marching):
    """The sampler of a consistency function, which takes the denoiser's place: x_0 = f(x), then
    noise of the next level on it, and again (Consistency Models, arXiv 2303.01469, algorithm 1).

    Given a plain denoiser instead it samples another distribution: each step forgets its noise.
    """

    def stepper(
        self, denoise: Denoiser, sigmas: Sequence[float], generator: torch.Generator
    ) -> Step:
        def step(x: Tensor, n: int, now: float, then: float) -> Tensor:
            clean = denoise(x, at(x, now))
            return clean + then * normal(x, generator) if then > 0 else clean

        return step
