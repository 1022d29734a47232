"""Guidance of generated windows towards a policy: the update of policy-guided diffusion
(arXiv 2404.06356), and the one that a score of the product distribution would have."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from mbrl.config import Finite, NonNegative, Settings
from mbrl.errors import ConfigError
from mbrl.training import is_stateful
from world_models.samplers.base import Before, Denoiser
from world_models.windows import Tokens


def log_prob(policy: Any, obs: Tensor, action: Tensor) -> Tensor:
    """log pi(a|s) [...] at raw `obs` [..., S] and `action` [..., A] in [-1, 1]; that of
    N(pi(s), 1) for a deterministic policy. Raises `ConfigError` for one that has neither."""
    if is_stateful(policy):
        raise ConfigError(
            f"{type(policy).__name__} carries a memory or a plan; its density at single steps is "
            "not defined"
        )
    if hasattr(policy, "log_prob"):
        value: Tensor = policy.log_prob(obs, action)
        return value
    if hasattr(policy, "unit"):
        away: Tensor = action - policy.unit(obs)
        return -0.5 * (away.square() + math.log(2 * math.pi)).sum(-1)
    raise ConfigError(
        f"{type(policy).__name__} has no density of continuous actions to be guided by"
    )


def window_log_prob(policy: Any, obs: Tensor, action: Tensor, reward: Tensor) -> Tensor:
    """log pi(a_t | s_t) [B, L] along windows of raw `obs` [B, L, S], `action` [B, L, A] in [-1, 1]
    and `reward` [B, L]. A policy with memory remembers the window so far and nothing before it.
    Raises as `log_prob` does."""
    if hasattr(policy, "log_prob_along"):
        value: Tensor = policy.log_prob_along(obs, action, reward)
        return value
    return log_prob(policy, obs, action)


def weight_for(level: Callable[[float], float], goal: float, start: float) -> float:
    """A weight at which `level` of it is `goal`: 0 if it is that high without guidance; else by
    doublings or halvings of `start` (above 0) and four bisections of the logarithm, to 4.5 %. Where
    the level falls again before it has reached the goal, or is not there after 12 doublings, the
    weight with the highest level that was seen."""
    if level(0.0) >= goal:
        return 0.0
    reached = level(start)
    low = high = start
    if reached < goal:
        for _ in range(12):
            low, high, before = high, 2.0 * high, reached
            reached = level(high)
            if reached >= goal:
                break
            if reached < before:
                return low
        else:
            return high
    else:
        for _ in range(12):
            low, high = 0.5 * low, low
            if level(low) < goal:
                break
    for _ in range(4):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if level(middle) < goal else (low, middle)
    return math.sqrt(low * high)


def reward_guided(denoise: Denoiser, reward: Callable[[Tensor], Tensor], weight: float) -> Denoiser:
    """A denoiser of windows [B, ...] that leans towards p(x) exp(weight r(x)): D + sigma^2 /
    (1 + sigma^2) weight grad r(D), which reads the reward [B] at the denoised window, where
    1 / (1 + sigma^2) is the slope of D for data of deviation 1. Not exact; `samplers.FeynmanKac`
    is."""

    def guided(x: Tensor, sigma: Tensor) -> Tensor:
        denoised = denoise(x, sigma)
        with torch.enable_grad():
            leaf = denoised.detach().requires_grad_()
            (slope,) = torch.autograd.grad(reward(leaf).sum(), leaf)
        variance = sigma.square().view(-1, *[1] * (x.ndim - 1))
        return denoised + weight * variance / (1.0 + variance) * slope

    return guided


Mode = Literal["paper", "score"]


@dataclass(frozen=True)
class PolicyGuidance(Settings):
    """Moves the actions of a window uphill in sum_t log pi(a_t | s_t), towards
    p(tau) prod_t pi(a_t | s_t)^weight.

    `paper`: before step n of N, actions move by weight (1 - n / N + cosine sin(pi (n + 1) / N)) g,
    and not before the last step; g is the gradient, divided by its norm over the whole window with
    `normalise`. Neither sigma nor the step is in it, so it does not sample that distribution
    exactly. `score`: the denoiser becomes D + sigma^2 / (1 + sigma^2) weight g. With `denoised`
    that is the score which reads the policy's density at D(x), 1 / (1 + sigma^2) being the slope of
    D for data of deviation 1; at low noise it is sigma^2 weight g, which at high noise would leap
    out of all bounds: the noised distribution of a product is far flatter than the policy. Not
    exact either; `samplers.FeynmanKac` with `log_likelihood` as reward is.

    The gradient goes through the actions alone, with a memory also through what later steps
    remember of them; observations and rewards are those of x or, with `denoised`, of D(x).
    Difference from the authors' code: the small number that guards the division is in the
    denominator, so no gradient gives no move.
    """

    policy: Any
    weight: NonNegative = 1.0  # lambda
    mode: Mode = "paper"
    normalise: bool = True  # divide the gradient by its norm over a window (paper alone)
    cosine: Finite = 0.3  # beta of the schedule (paper alone)
    denoised: bool = False  # look at D(x) instead of x

    def schedule(self, n: int, steps: int) -> float:
        """What the gradient counts before step n of `steps`."""
        if n >= steps - 1:
            return 0.0
        wave = math.sin(math.pi * (n + 1) / steps)
        return self.weight * (1.0 - n / steps + self.cosine * wave)

    def log_likelihood(self, tokens: Tokens, x: Tensor, around: Tensor | None = None) -> Tensor:
        """sum_t log pi(a_t | s_t) [B] of standardised windows [B, L, F], differentiable; with
        `around` of the actions of `x` at the observations and rewards of `around`."""
        around = x if around is None else around
        reward, obs = tokens.restored(around)[..., -2], tokens.observations(around)
        return window_log_prob(self.policy, obs, tokens.unit_actions(x), reward).sum(-1)

    def gradient(self, tokens: Tokens, x: Tensor) -> Tensor:
        """Of `log_likelihood` with respect to the action slots [B, L, A] alone."""
        part, x = tokens.actions, x.detach()
        with torch.enable_grad():
            action = x[..., part].requires_grad_()
            whole = torch.cat([x[..., : part.start], action, x[..., part.stop :]], -1)
            value = self.log_likelihood(tokens, whole, x).sum()  # no chain back to observations
            (gradient,) = torch.autograd.grad(value, action)
        return gradient

    def attach(self, tokens: Tokens, denoise: Denoiser) -> tuple[Denoiser, Before | None]:
        """The denoiser and the move before each step of a guided sampler."""
        part = tokens.actions
        if self.weight == 0:
            return denoise, None

        def score(x: Tensor, sigma: Tensor) -> Tensor:
            denoised = denoise(x, sigma)
            g = self.gradient(tokens, denoised if self.denoised else x)
            denoised = denoised.clone()
            variance = sigma.square()[:, None, None]
            denoised[..., part] += self.weight * variance / (1.0 + variance) * g
            return denoised

        def before(x: Tensor, n: int, sigmas: Sequence[float]) -> Tensor:
            size = self.schedule(n, len(sigmas) - 1)
            if size == 0.0:
                return x
            at = denoise(x, x.new_full((len(x),), sigmas[n])) if self.denoised else x
            g = self.gradient(tokens, at)
            if self.normalise:
                g = g / g.flatten(1).norm(dim=1).clamp_min(1e-8)[:, None, None]
            x = x.clone()
            x[..., part] += size * g
            return x

        return (score, None) if self.mode == "score" else (denoise, before)
