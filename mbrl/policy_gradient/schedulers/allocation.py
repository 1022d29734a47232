"""Arithmetic that schedulers share: sums over prompts, integer shares of a budget, draws."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.policy_gradient.measures.trackers import SuccessTracker
from mbrl.policy_gradient.schedulers.scheduler import Outcome, Request


@dataclass(frozen=True)
class Tally:
    """Of every prompt of the pool, float64 [N]: its rollouts, and the sum and the sum of squares of
    what they earned."""

    count: Tensor
    total: Tensor
    squares: Tensor

    @property
    def prompts(self) -> Tensor:
        """int64 [P]: those with a rollout."""
        return (self.count > 0).nonzero().flatten()

    @property
    def mean(self) -> Tensor:
        """0 where there is no rollout."""
        return self.total / self.count.clamp_min(1)

    @property
    def variance(self) -> Tensor:
        """Of a sample; 0 where there are fewer than two rollouts."""
        centred = (self.squares - self.count * self.mean**2).clamp_min(0)
        variance = centred / (self.count - 1).clamp_min(1)
        # Equal rewards differ by rounding alone, which must not count as spread.
        noise = 1e-12 * self.squares / self.count.clamp_min(1)
        return torch.where(variance > noise, variance, torch.zeros_like(variance))


def tally(outcome: Outcome, size: int) -> Tally:
    """Sums over the rollouts of each of `size` prompts."""
    if len(outcome.prompts) and int(outcome.prompts.max()) >= size:
        raise ConfigError(
            f"prompt {int(outcome.prompts.max())} is not in the pool of {size}; give ids from 0"
        )
    rewards = outcome.rewards.double()
    powers = (torch.ones_like(rewards), rewards, rewards**2)
    empty = torch.zeros(size, dtype=torch.float64)
    return Tally(*(empty.index_add(0, outcome.prompts, value) for value in powers))


def successes(outcome: Outcome) -> Outcome:
    """`outcome` itself. Raises `ConfigError` unless every reward is in [0, 1]."""
    r = outcome.rewards
    if len(r) and not bool(((r >= 0) & (r <= 1)).all()):
        raise ConfigError(
            f"rewards from {float(r.min()):g} to {float(r.max()):g}; this scheduler counts "
            "successes: give rewards in [0, 1], shaping belongs to the objective"
        )
    return outcome


def remember(tracker: SuccessTracker, outcome: Outcome) -> None:
    """Every rollout's success into `tracker`, in their order."""
    for prompt, reward in zip(
        outcome.prompts.tolist(), successes(outcome).rewards.tolist(), strict=True
    ):
        tracker.update(prompt, reward)


def rates(tracker: SuccessTracker, size: int) -> Tensor:
    """float64 [N]: success rates by `tracker`, its prior where a prompt was not answered yet."""
    return torch.tensor([tracker.value(i) for i in range(size)], dtype=torch.float64)


def in_groups(order: Tensor, places: int, group: int) -> Request:
    """`places` groups of `group` rollouts for prompts [P] in this order, again from the first one
    where there are fewer prompts than places."""
    return Request.of(order[torch.arange(places) % len(order)], group)


def spread(size: int, places: int, group: int, generator: torch.Generator) -> Request:
    """`places` groups for prompts drawn evenly, none again before all others had a group."""
    return in_groups(torch.randperm(size, generator=generator), places, group)


def first(scores: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """int64 [min(count, N)]: where the largest of `scores` [N] are, largest first; equal ones in
    random order."""
    mixed = torch.randperm(len(scores), generator=generator)
    return mixed[torch.argsort(scores[mixed], descending=True, stable=True)][:count]


def draw(weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """int64 [min(count, N)]: ids drawn one after the other by `weights` [N] >= 0, none twice; those
    of weight 0 only when there are no others."""
    noise = torch.rand(len(weights), generator=generator, dtype=torch.float64).clamp_min(1e-300)
    # The largest of log u / w: a race of exponential clocks, exact for draws without replacement.
    keys = torch.where(weights > 0, noise.log() / weights.double(), -torch.inf)
    return first(keys, count, generator)


def water_level(weights: Tensor, total: float, low: Tensor, high: Tensor) -> float:
    """c so that the sum of clamp(c weights, low, high) is `total`, or the largest one below."""
    positive = weights[weights > 0]
    if not len(positive):
        return 0.0
    bottom, top = 0.0, float((high[weights > 0] / positive).max()) + 1.0
    # Up to the last digit: beside a weight next to nothing the top is far beyond what is found.
    while bottom < (middle := bottom + (top - bottom) / 2) < top:
        if float((middle * weights).clamp(low, high).sum()) <= total:
            bottom = middle
        else:
            top = middle
    return bottom


def share_out(weights: Tensor, total: int, low: Tensor | int, high: Tensor | int) -> Tensor:
    """int64 [P]: whole shares of `total` in proportion to `weights` [P] >= 0, between `low` and
    `high` [P]; they sum to `total`, or to what the bounds allow. What is left after rounding down
    goes to the largest remainders. Without any weight all are equal."""
    w = weights.double()
    w = w if bool((w > 0).any()) else torch.ones_like(w)
    least = torch.as_tensor(low, dtype=torch.float64).expand_as(w)
    most = torch.as_tensor(high, dtype=torch.float64).expand_as(w)
    total = int(min(max(total, float(least.sum())), float(most.sum())))
    exact = (water_level(w, total, least, most) * w).clamp(least, most)
    share = (exact + 1e-9).floor().clamp(least, most)
    order = torch.argsort(exact - share, descending=True, stable=True)
    while (left := total - int(share.sum())) > 0:
        open_ = order[share[order] < most[order]][:left]
        share[open_] += 1
    return share.long()


def numpy_generator(generator: torch.Generator) -> np.random.Generator:
    """A numpy generator whose seed is drawn from `generator`, for laws that torch cannot draw with
    one."""
    return np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))


def in_range(setting: str, value: float, low: float, high: float, *, ends: bool = True) -> None:
    """Raises `ConfigError` unless low <= value <= high (`ends` False: low < value < high)."""
    if not (low <= value <= high if ends else low < value < high):
        between = f"from {low:g} to {high:g}" if ends else f"between {low:g} and {high:g}"
        raise ConfigError(f"{setting} is {value:g}; give a value {between}")


def first_places(budget: int, share: float, group: int) -> int:
    """Groups of `group` rollouts in a first pass that takes `share` of the budget, at least 1."""
    return max(1, int(share * budget + 1e-9) // group)
