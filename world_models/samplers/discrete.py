"""Samplers of discrete diffusions, and few steps that are learned from many: coefficients of the
jumps and the levels at which they are made."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from mbrl.config import Settings, Several
from mbrl.errors import ConfigError
from world_models.samplers.base import check_levels

# x [B, L] int64 and a level to p_s(x with position i set to v) / p_s(x), [B, L, K]
Scores = Callable[[Tensor, float], Tensor]


@dataclass(frozen=True)
class Process(Settings):
    """Forward corruption of tokens 0..V-1, each by itself, at level s (the integral of the rate):
    `uniform` replaces a token by a uniform one with probability 1 - e^-s; `masked` by the mask,
    which is token V (Discrete Diffusion Modeling by Estimating the Ratios of the Data Distribution,
    arXiv 2310.16834)."""

    tokens: Several  # V
    kind: Literal["uniform", "masked"] = "uniform"

    @property
    def states(self) -> int:
        """K: V, or V + 1 with a mask."""
        return self.tokens + (self.kind == "masked")

    def kernel(self, level: float) -> Tensor:
        """Probability [K, K] of each state (column) after corruption by `level` from each (row)."""
        kept = math.exp(-level)
        change = torch.zeros(self.states, self.states, dtype=torch.double)
        if self.kind == "uniform":
            change[:] = 1.0 / self.tokens
        else:
            change[:, -1] = 1.0
        return kept * torch.eye(self.states, dtype=torch.double) + (1.0 - kept) * change

    def rates(self, x: Tensor, scores: Tensor) -> Tensor:
        """Reverse jump rates [B, L, K] per unit of level, 0 at the present state."""
        if self.kind == "uniform":
            rates = scores / self.tokens
        else:
            rates = scores * (x == self.tokens)[..., None]
        return rates.scatter(-1, x[..., None], 0.0)

    def start(self, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Fully corrupted tokens."""
        if self.kind == "masked":
            return torch.full(shape, self.tokens, device=generator.device)
        return torch.randint(self.tokens, shape, generator=generator, device=generator.device)


def jump_probabilities(
    process: Process, x: Tensor, scores: Tensor, now: float, then: float, coefficient: float = 1.0
) -> Tensor:
    """Law [B, L, K] of every position after a step from level `now` to `then`, with rates as they
    are at the start of it, scaled by `coefficient`: a position stays with probability exp(-rates),
    and else jumps once, independently of the others. At level 0 nothing stays a mask."""
    rates = coefficient * (now - then) * process.rates(x, scores)
    total = rates.sum(-1, keepdim=True)
    leaves = -torch.expm1(-total)
    if process.kind == "masked" and then == 0:
        leaves = torch.where((x == process.tokens)[..., None], 1.0, leaves)
    jumps = rates * (leaves / total.clamp_min(torch.finfo(total.dtype).tiny))
    return jumps.scatter_add(-1, x[..., None], 1.0 - leaves)


def drawn(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    """One state [B, L] of each distribution [B, L, K]."""
    flat = probabilities.flatten(0, 1)
    return torch.multinomial(flat, 1, generator=generator).view(probabilities.shape[:2])


@dataclass(frozen=True)
class TauLeaping:
    """First-order steps of the reverse jump process, all positions at once, each step with a
    coefficient (none: 1). Without coefficients it comes to sample the data's distribution as steps
    grow."""

    process: Process
    coefficients: tuple[float, ...] | None = None

    def __call__(
        self, scores: Scores, x: Tensor, levels: Sequence[float], generator: torch.Generator
    ) -> Tensor:
        """Samples [B, L] at the last level from `x` [B, L] at the first."""
        return self.path(scores, x, levels, generator)[-1]

    def path(
        self, scores: Scores, x: Tensor, levels: Sequence[float], generator: torch.Generator
    ) -> Tensor:
        """The states at every level, [levels, B, L]."""
        check_levels(levels)
        steps = len(levels) - 1
        factors = self.coefficients or (1.0,) * steps
        if len(factors) != steps:
            raise ConfigError(f"there are {len(factors)} coefficients for {steps} steps")
        states = [x]
        for (now, then), factor in zip(pairwise(levels), factors, strict=True):
            distribution = jump_probabilities(self.process, x, scores(x, now), now, then, factor)
            x = drawn(distribution, generator)
            states.append(x)
        return torch.stack(states)


class Learned(NamedTuple):
    """A sampler of few steps, its levels, and the mean negative log-likelihood that each of its
    steps gives to the teacher's transitions."""

    sampler: TauLeaping
    levels: tuple[float, ...]
    losses: tuple[float, ...]


def step_loss(
    process: Process, scores: Scores, paths: Tensor, levels: Sequence[float], a: int, b: int
) -> Callable[[float], float]:
    """Mean over paths of -log p(x at level b | x at level a) of one step, by its coefficient."""
    x, after = paths[a], paths[b]
    score = scores(x, levels[a])

    def loss(coefficient: float) -> float:
        distribution = jump_probabilities(process, x, score, levels[a], levels[b], coefficient)
        chosen = distribution.gather(-1, after[..., None])[..., 0]
        return float(-chosen.clamp_min(1e-12).log().sum(1).mean())

    return loss


Judge = Callable[[TauLeaping, tuple[float, ...]], float]  # of a sampler on levels; less is better


def learn_few_steps(
    process: Process,
    scores: Scores,
    paths: Tensor,
    levels: Sequence[float],
    steps: int,
    judge: Judge | None = None,
) -> Learned:
    """Learnable sampler distillation (arXiv 2509.19962): a student of `steps` steps, a coefficient
    each, from `paths` [levels, B, L] of a teacher with many. With a `judge` its levels are learned
    too (LSD+): each moves along the teacher's, coefficients with it, as long as the judge's number
    falls; without one they are spread evenly over the teacher's.

    A coefficient is the one under which a step of the student makes the teacher's transition
    between the same two levels most likely. Differences: the authors align scores along the
    student's own path, and move levels, by gradients; with likelihoods the steps part, so that each
    coefficient is a search on a line.
    """
    last = len(levels) - 1
    if not 1 <= steps <= last:
        raise ConfigError(f"steps is {steps}, it must lie in 1..{last} (of the teacher)")
    known: dict[tuple[int, int], tuple[float, float]] = {}

    def student(nodes: Sequence[int]) -> Learned:
        for a, b in pairwise(nodes):
            if (a, b) not in known:
                loss = step_loss(process, scores, paths, levels, a, b)
                known[a, b] = best_coefficient(loss)
        chosen = [known[edge] for edge in pairwise(nodes)]
        sampler = TauLeaping(process, tuple(coefficient for coefficient, _ in chosen))
        return Learned(sampler, tuple(levels[n] for n in nodes), tuple(c for _, c in chosen))

    nodes = [round(k * last / steps) for k in range(steps + 1)]
    best = student(nodes)
    if judge is None:
        return best
    value, moved = judge(best.sampler, best.levels), True
    while moved:
        moved = False
        for k, by in itertools.product(range(1, steps), (-1, 1)):
            tried = [n + by * (index == k) for index, n in enumerate(nodes)]
            if not tried[k - 1] < tried[k] < tried[k + 1]:
                continue
            other = student(tried)
            worth = judge(other.sampler, other.levels)
            if worth < value:
                nodes, best, value, moved = tried, other, worth, True
    return best


def learn_on_own_path(
    process: Process,
    scores: Scores,
    x: Tensor,
    levels: Sequence[float],
    steps: int,
    generator: torch.Generator,
) -> Learned:
    """Learnable sampler distillation along the student's own path, as the authors have it: the
    states that a step of the student begins in are where its earlier steps, learned already, led
    from `x` [B, L], and the teacher goes on from there through all `levels` of that interval. The
    coefficient is the one under which the student's step is nearest to the teacher's transition
    (by the KL divergence, up to the draws), where the authors align scores by gradients."""
    last = len(levels) - 1
    if not 1 <= steps <= last:
        raise ConfigError(f"steps is {steps}, it must lie in 1..{last} (of the teacher)")
    nodes = [round(k * last / steps) for k in range(steps + 1)]
    chosen = []
    for a, b in pairwise(nodes):
        own = levels[a : b + 1]
        paths = TauLeaping(process).path(scores, x, own, generator)
        chosen.append(best_coefficient(step_loss(process, scores, paths, own, 0, b - a)))
        score = scores(x, levels[a])
        x = drawn(
            jump_probabilities(process, x, score, levels[a], levels[b], chosen[-1][0]), generator
        )
    sampler = TauLeaping(process, tuple(coefficient for coefficient, _ in chosen))
    return Learned(sampler, tuple(levels[n] for n in nodes), tuple(c for _, c in chosen))


def best_coefficient(loss: Callable[[float], float]) -> tuple[float, float]:
    """The coefficient between e^-2 and e^2 of least loss, and this loss."""
    from scipy import optimize  # here, as it takes long to import

    optimum = optimize.minimize_scalar(
        lambda log: loss(math.exp(log)), bounds=(-2.0, 2.0), method="bounded"
    )
    return math.exp(float(optimum.x)), float(optimum.fun)
