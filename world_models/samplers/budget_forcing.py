"""Search at sampling time for a reward: flows turned into denoisers and stochastic paths, and
rollover budget forcing over the steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.config import Count, Rate
from world_models.samplers.base import Denoiser, Marching, Step, at
from world_models.samplers.feynman_kac import Reward, rewarded
from world_models.samplers.one_step import stochastic_step

Velocity = Callable[[Tensor, Tensor], Tensor]  # y [B, ...], time [B] in (0, 1] to dy/dt


def denoiser_of_flow(velocity: Velocity) -> Denoiser:
    """The denoiser of a flow y_t = (1 - t) noise + t x_0 with velocity E[x_0 - noise | y_t].

    With sigma = (1 - t) / t the flow's y is t (x_0 + sigma noise), and E[x_0 | y_t] = y_t + (1 - t)
    times the velocity. Every sampler here can so follow the flow, the stochastic ones turn it into
    an SDE (Inference-Time Scaling for Flow Models via Stochastic Generation and Rollover Budget
    Forcing, arXiv 2503.19385), and since a variance-preserving path is another scaling
    of the same x and sigma, its interpolant conversion is the choice of levels alone.
    """

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        time = 1.0 / (1.0 + sigma)
        t = time.view(-1, *[1] * (x.ndim - 1))
        return t * x + (1.0 - t) * velocity(t * x, time)

    return denoise


@dataclass(frozen=True)
class BudgetForcing(Marching):
    """Rollover budget forcing (arXiv 2503.19385): at each step a sample tries up to
    `quota` stochastic continuations; the first whose denoised look-ahead has a higher reward than
    the present one's is taken and the tries it saved go to the next step, else the best of them.

    A search for high reward, not a sampler of a distribution: with a constant reward it is DDIM
    with `eta`.
    """

    reward: Reward  # of clean samples [B, ...], [B]; only its values are used
    quota: Count = 4  # tries a step, on average at most
    eta: Rate = 1.0  # share of fresh noise in a try, above 0

    def evaluations(self, steps: int) -> int:
        """At most, for each sample: one for the start and one for every try."""
        return 1 + self.quota * (steps - 1)

    def stepper(
        self, denoise: Denoiser, sigmas: Sequence[float], generator: torch.Generator
    ) -> Step:
        given: Tensor | None = None  # what the step before handed on
        denoised, best, left = torch.empty(0), torch.empty(0), torch.empty(0)

        @torch.no_grad()
        def step(x: Tensor, n: int, now: float, then: float) -> Tensor:
            nonlocal given, denoised, best, left
            if given is None:
                left = torch.zeros(len(x), dtype=torch.long, device=x.device)
            if x is not given:  # the first, or moved since
                denoised = denoise(x, at(x, now))
                best = rewarded(self.reward, denoised)
            if then == 0:
                return denoised
            levels, left = (now, then), left + self.quota
            given, denoised, best, left = self._try(
                denoise, x, denoised, best, left, levels, generator
            )
            return given

        return step

    def _try(
        self,
        denoise: Denoiser,
        x: Tensor,
        denoised: Tensor,
        present: Tensor,
        left: Tensor,
        levels: tuple[float, float],
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The continuation of every sample, its look-ahead and reward, and the tries left over."""
        taken, ahead = torch.empty_like(x), torch.empty_like(x)
        value, left = torch.full_like(present, -torch.inf), left.clone()
        first = True  # is taken whatever its reward, be it minus infinity
        trying = torch.arange(len(x), device=x.device)
        while len(trying):
            now, then = levels
            guess = stochastic_step(x[trying], denoised[trying], now, then, self.eta, generator)
            look = denoise(guess, at(guess, then))
            reward = rewarded(self.reward, look)
            left[trying] -= 1
            better = torch.ones_like(trying, dtype=torch.bool) if first else reward > value[trying]
            first = False
            rows = trying[better]
            taken[rows], ahead[rows], value[rows] = guess[better], look[better], reward[better]
            going = (value[trying] <= present[trying]) & (left[trying] > 0)
            trying = trying[going]
        return taken, ahead, value, left
