"""Samplers that look at the present level alone: Euler, Heun, EDM's churn, DDIM."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from mbrl.config import NonNegative, Probability, Range
from mbrl.errors import ConfigError
from world_models.samplers.base import Denoiser, Marching, Step, at, normal


def euler_step(denoise: Denoiser, x: Tensor, now: float, then: float) -> Tensor:
    """x + (sigma' - sigma) (x - D) / sigma, in the form that is exact at sigma' = 0."""
    return torch.lerp(denoise(x, at(x, now)), x, then / now)


def heun_step(denoise: Denoiser, x: Tensor, now: float, then: float) -> Tensor:
    """The trapezoidal rule on dx/dsigma = (x - D) / sigma; Euler's where it would end at 0."""
    if then == 0:
        return euler_step(denoise, x, now, then)
    slope = (x - denoise(x, at(x, now))) / now
    guess = x + (then - now) * slope
    slope = slope + (guess - denoise(guess, at(x, then))) / then
    return x + 0.5 * (then - now) * slope


def fresh_noise(now: float, then: float, eta: float) -> float:
    """Deviation, in the scale of x, of the noise that DDIM draws anew. The paper's sigma_t at
    alpha_bar = 1 / (1 + sigma^2), divided by sqrt(alpha_bar) of the next level, reduces to this."""
    return eta * then * math.sqrt(1.0 - (then / now) ** 2)


def stochastic_step(
    x: Tensor, denoised: Tensor, now: float, then: float, eta: float, generator: torch.Generator
) -> Tensor:
    """DDIM's step from x, whose denoised form is known."""
    fresh = fresh_noise(now, then, eta)
    x = torch.lerp(denoised, x, math.sqrt(then**2 - fresh**2) / now)
    return x + fresh * normal(x, generator) if fresh > 0 else x


@dataclass(frozen=True)
class Euler(Marching):
    """First order, one evaluation a step."""

    def stepper(
        self, denoise: Denoiser, sigmas: Sequence[float], generator: torch.Generator
    ) -> Step:
        return lambda x, _, now, then: euler_step(denoise, x, now, then)


@dataclass(frozen=True)
class Heun(Marching):
    """Second order, two evaluations a step (EDM, arXiv 2206.00364, algorithm 1)."""

    def stepper(
        self, denoise: Denoiser, sigmas: Sequence[float], generator: torch.Generator
    ) -> Step:
        return lambda x, _, now, then: heun_step(denoise, x, now, then)

    def evaluations(self, steps: int) -> int:
        return 2 * steps - 1


@dataclass(frozen=True)
class Churn(Marching):
    """Noise is added before each of Heun's steps (EDM, arXiv 2206.00364, algorithm 2). The defaults
    are those of policy-guided diffusion's code, whose Euler part starts from the x without the new
    noise; here it starts from the one with it, as in the paper."""

    amount: NonNegative = 80.0  # over all steps; a step's share is at most sqrt(2) - 1
    low: NonNegative = 0.05  # levels between low and high are churned
    high: Annotated[float, Range(float, "[0, inf]")] = 50.0
    noise: NonNegative = 1.003  # deviation of the new noise against its due

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise ConfigError(f"low is {self.low}, it must not exceed high, {self.high}")

    def raised(self, sigma: float, steps: int) -> float:
        """The level that the new noise leads to."""
        share = min(self.amount / steps, math.sqrt(2.0) - 1.0)
        return sigma * (1.0 + share) if self.low <= sigma <= self.high else sigma

    def stepper(
        self, denoise: Denoiser, sigmas: Sequence[float], generator: torch.Generator
    ) -> Step:
        steps = len(sigmas) - 1

        def step(x: Tensor, n: int, now: float, then: float) -> Tensor:
            above = self.raised(now, steps)
            if above > now:
                extra = math.sqrt(above**2 - now**2) * self.noise
                x = x + extra * normal(x, generator)
            return heun_step(denoise, x, above, then)

        return step

    def evaluations(self, steps: int) -> int:
        return 2 * steps - 1


@dataclass(frozen=True)
class DDIM(Marching):
    """Denoising Diffusion Implicit Models (arXiv 2010.02502, eq. 12 and 16). With eta 0 it is
    Euler's method, with eta 1 the ancestral sampler of DDPM."""

    eta: Probability = 0.0  # share of fresh noise, 0 to 1

    def stepper(
        self, denoise: Denoiser, sigmas: Sequence[float], generator: torch.Generator
    ) -> Step:
        def step(x: Tensor, n: int, now: float, then: float) -> Tensor:
            return stochastic_step(x, denoise(x, at(x, now)), now, then, self.eta, generator)

        return step
