"""Feynman-Kac correctors: particles that follow a guided, annealed or product diffusion, weighted
so that what they represent at the end is exactly the distribution asked for."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from mbrl.config import Finite, Positive, Probability, Settings
from mbrl.errors import ConfigError
from world_models.samplers.base import Before, Denoiser, at, check_levels, normal

Reward = Callable[[Tensor], Tensor]  # x [B, ...] to r(x) [B], differentiable


def rewarded(reward: Reward, x: Tensor) -> Tensor:
    """r(x) [B]. Raises `ConfigError` where it is NaN, than which nothing is better or worse."""
    value = reward(x)
    if bool(value.isnan().any()):
        raise ConfigError("the reward is NaN for some samples; use -inf for what is forbidden")
    return value


class Particles(NamedTuple):
    """`x` [B, ...] and `log_weights` [B], whose exponentials sum to 1."""

    x: Tensor
    log_weights: Tensor

    @property
    def effective(self) -> float:
        """The effective sample size 1 / sum w^2."""
        return float(1.0 / self.log_weights.exp().square().sum())


@dataclass(frozen=True)
class FeynmanKac(Settings):
    """Sequential Monte Carlo towards p(x)^exponent prod_i p_i(x)^(b_i) exp(tilt r(x)), up to a
    constant (Feynman-Kac Correctors in Diffusion, arXiv 2503.02819, here variance-exploding).

    With time running as -sigma^2, l_i = log p_i at the present level, L = sum b_i l_i and m the
    present tilt, particles follow dx = ((1 + z) / 2 grad L + z / 2 m grad r) dt + sqrt(z) dW with
    z = `noise`, and d log w = (|grad L|^2 - sum b_i |grad l_i|^2) / 2 dt + r dm + m / 2 grad L .
    grad r dt: no Laplacian is needed. The tilt grows to `tilt` as 1 / (1 + sigma^2); what it is at
    the first level is in the weights that particles begin with. One distribution with exponent b is
    annealing, several with 1 are a product, (1 - w, w) is classifier-free guidance.

    The noise of a step from sigma to sigma' has variance z (sigma^2 - sigma'^2) sigma' / sigma, the
    geometric mean of what it is where the data are a point and where they are flat: in the limit of
    small steps that of the process above, and no noise in the last step.

    Not a sampler of the data's distribution: exact for the distribution above as steps and
    particles grow. The particles of one call depend on each other through resampling. Where
    exponents do not sum to 1 the weights work at every level, high noise included, so a start at a
    lower sigma_0 is less noisy.
    """

    exponent: Finite = 1.0  # of the distribution whose denoiser is given to the call
    experts: tuple[tuple[Denoiser, float], ...] = ()  # more denoisers, with their exponents
    reward: Reward | None = None  # r
    tilt: Finite = 0.0  # weight of r at the end
    noise: Positive = 1.0  # z, above 0: without noise copies of a particle would stay together
    corrected: bool = True  # False: the guided process alone, without weights
    resample_below: Probability = 0.5  # share of the particles that the effective number falls to

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.total <= 0:
            raise ConfigError(
                f"the exponents sum to {self.total}, which must be above 0: the "
                "distribution would have no start at high noise"
            )
        if (self.reward is None) != (self.tilt == 0.0):
            raise ConfigError(f"tilt is {self.tilt} and reward {self.reward}; give both or neither")

    @property
    def total(self) -> float:
        return self.exponent + sum(b for _, b in self.experts)

    def evaluations(self, steps: int) -> int:
        return steps * (1 + len(self.experts))

    def tilt_at(self, sigma: float) -> float:
        """m at a level."""
        return self.tilt / (1.0 + sigma**2)

    def __call__(
        self,
        denoise: Denoiser,
        x: Tensor,
        sigmas: Sequence[float],
        generator: torch.Generator,
        *,
        before: Before | None = None,
    ) -> Tensor:
        """As many samples as `x` has rows, drawn from the weighted particles. Raises `ConfigError`
        for a `before`, whose moves no weight would account for."""
        if before is not None:
            raise ConfigError("Feynman-Kac correctors take guidance as a reward, not as moves")
        particles = self.particles(denoise, x, sigmas, generator)
        if not self.corrected:
            return particles.x
        return particles.x[systematic(particles.log_weights, generator)]

    def particles(
        self,
        denoise: Denoiser,
        x: Tensor,
        sigmas: Sequence[float],
        generator: torch.Generator,
    ) -> Particles:
        """The weighted particles, from `x` [B, ...] ~ N(0, sigma_0^2). Raises `ConfigError` where
        the reward is minus infinity for all of them, and where tilt times it is plus infinity for
        one."""
        check_levels(sigmas)
        distributions = [(denoise, self.exponent), *self.experts]
        x = x / math.sqrt(self.total)  # N(0, sigma^2)^b is N(0, sigma^2 / b)
        even = -math.log(len(x))
        log_weights = x.new_full((len(x),), even)
        if self.reward is not None and self.corrected:
            with torch.no_grad():
                value = rewarded(self.reward, x)
                self._require_weighable(value)
                log_weights = shares(self.tilt_at(sigmas[0]) * value)
        for now, then in pairwise(sigmas):
            x, gained = self._step(distributions, x, now, then, generator)
            if self.corrected:
                log_weights = shares(log_weights + gained)
                particles = Particles(x, log_weights)
                if then > 0 and particles.effective < self.resample_below * len(x):
                    x = x[systematic(log_weights, generator)]
                    log_weights = torch.full_like(log_weights, even)
        return Particles(x, log_weights)

    def _step(
        self,
        distributions: Sequence[tuple[Denoiser, float]],
        x: Tensor,
        now: float,
        then: float,
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor]:
        """The particles after a step, and what their log-weights gain [B]."""
        dt = now**2 - then**2
        total, squares = torch.zeros_like(x), x.new_zeros(len(x))
        for distribution, exponent in distributions:
            score = (distribution(x, at(x, now)) - x) / now**2
            total = total + exponent * score
            squares = squares + exponent * _dot(score, score)
        drift = 0.5 * (1.0 + self.noise) * total
        gained = 0.5 * (_dot(total, total) - squares) * dt
        if self.reward is not None:
            here, later = self.tilt_at(now), self.tilt_at(then)
            value, slope = _with_gradient(self.reward, x)
            if self.corrected:
                self._require_weighable(value)
            drift = drift + 0.5 * self.noise * here * slope
            gained = gained + value * (later - here) + 0.5 * here * _dot(total, slope) * dt
        deviation = math.sqrt(self.noise * dt * then / now)
        return x + drift * dt + deviation * normal(x, generator), gained

    def _require_weighable(self, value: Tensor) -> None:
        """Raise `ConfigError` where tilt times the reward `value` [B] is plus infinity: such
        particles would have all the weight, and nothing says how to share it."""
        if bool((self.tilt * value == math.inf).any()):
            raise ConfigError(
                f"tilt {self.tilt:g} times the reward is inf in {value.dtype} for some samples, "
                "which leaves all others no weight; give smaller rewards"
            )


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)


def shares(log_weights: Tensor) -> Tensor:
    """Log-weights [B] whose exponentials sum to 1. Raises `ConfigError` where all are -inf."""
    if bool((log_weights == -math.inf).all()):
        raise ConfigError(
            f"the reward is -inf for all of {len(log_weights)} particles that are left; give more "
            "particles, or a finite reward"
        )
    return torch.log_softmax(log_weights, 0)


def _with_gradient(reward: Reward, x: Tensor) -> tuple[Tensor, Tensor]:
    """r(x) [B] and its slope [B, ...], 0 where r is -inf: log 0 has none, and such a particle keeps
    no weight wherever it goes."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        value = rewarded(reward, x)
        (slope,) = torch.autograd.grad(value.sum(), x)
    forbidden = (value == -math.inf).view(-1, *[1] * (x.ndim - 1))
    return value.detach(), slope.masked_fill(forbidden, 0.0)


def systematic(log_weights: Tensor, generator: torch.Generator) -> Tensor:
    """Indices [B] of a systematic resampling: each particle appears floor or ceil of B w times."""
    count = len(log_weights)
    device, dtype = log_weights.device, torch.double
    start = torch.rand((), generator=generator, device=device, dtype=dtype)
    points = (torch.arange(count, device=device, dtype=dtype) + start) / count
    edges = torch.softmax(log_weights.double(), 0).cumsum(0)
    return torch.searchsorted(edges, points).clamp_max(count - 1)
