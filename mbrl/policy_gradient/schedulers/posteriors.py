"""Schedulers that know how often each prompt succeeded of late: VADE's posteriors, and pairs of a
hard and an easy prompt."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.config import NonNegative, Probability, Settings
from mbrl.errors import ConfigError
from mbrl.policy_gradient.axes.option import one_of
from mbrl.policy_gradient.measures.trackers import SuccessTracker
from mbrl.policy_gradient.schedulers.allocation import (
    first,
    in_groups,
    numpy_generator,
    rates,
    remember,
    successes,
    tally,
)
from mbrl.policy_gradient.schedulers.scheduler import Outcome, Pool, Request, Scheduler

FAINT = 1e-300  # answers; draws with it are those of none: the rate is 0 or 1


@dataclass(frozen=True)
class VADEConfig(Settings):
    prior: NonNegative = 1.0  # both counts of a prompt's Beta distribution before any answer
    fast: Probability = 0.5  # factor on the counts of a prompt that is answered
    slow: Probability = 0.98  # factor on the others' distance from the prior
    priority: str = "information"  # p (1 - p)^2, or "variance": p (1 - p)


class VADE(Scheduler):
    """Prompts by the success rate p that is drawn from the Beta posterior of each (Thompson): those
    with the largest p (1 - p)^2, or the largest p (1 - p).

    Answers make counts fast x old + new; the counts of prompts left alone go back to the prior at
    `slow`, so that they are tried again while the policy changes. "VADE: Variance-Aware Dynamic
    Sampling via Online Sample-Level Difficulty Estimation for Multimodal RL", arXiv 2511.18902.
    """

    beliefs = ("right", "wrong")

    def __init__(
        self, pool: Pool, budget: int, group: int, config: VADEConfig = VADEConfig()
    ) -> None:
        super().__init__(pool, budget, group)
        if config.prior <= 0:
            raise ConfigError(f"prior is {config.prior:g}; give a count above 0")
        one_of(config.priority, ("variance", "information"), "priority")
        self.config = config
        self.right = torch.full((pool.size,), config.prior, dtype=torch.float64)
        self.wrong = self.right.clone()

    def request(self, generator: torch.Generator) -> Request:
        # Where all answers were alike the other count fades to 0, and no law has that.
        counts = (side.clamp_min(FAINT).numpy() for side in (self.right, self.wrong))
        draws = numpy_generator(generator).beta(*counts)
        rate = torch.from_numpy(draws)
        score = rate * (1 - rate)
        if self.config.priority == "information":
            score = score * (1 - rate)
        return in_groups(first(score, self.places, generator), self.places, self.group)

    def observe(self, outcome: Outcome, generator: torch.Generator) -> None:
        counted = tally(successes(outcome), self.pool.size)
        for counts, new in (
            (self.right, counted.total),
            (self.wrong, counted.count - counted.total),
        ):
            faded = self.config.prior + self.config.slow * (counts - self.config.prior)
            counts.copy_(torch.where(counted.count > 0, self.config.fast * counts + new, faded))
        super().observe(outcome, generator)


@dataclass(frozen=True)
class WeightedPairsConfig(Settings):
    hard: tuple[Probability, Probability] = (0.01, 0.4)  # success rates of the hard half
    easy: tuple[Probability, Probability] = (0.6, 0.99)  # of the easy half
    discount: Probability = 0.9  # of an answer by the next answer to its prompt


class WeightedPairs(Scheduler):
    """Half of the groups for prompts that are hard but solved at times, half for prompts that are
    easy but failed at times, by running success rates; drawn evenly within each band, filled up
    with the prompts that are nearest to it. `hard(prompts)` says which half a prompt is in; the
    weights of rare events belong to the objective (the recipe `weighted_grpo`).

    "Beyond Variance: Prompt-Efficient RLVR via Rare-Event Amplification and Bidirectional Pairing",
    arXiv 2602.03452.
    """

    beliefs = ("tracker",)

    def __init__(
        self,
        pool: Pool,
        budget: int,
        group: int,
        config: WeightedPairsConfig = WeightedPairsConfig(),
    ) -> None:
        super().__init__(pool, budget, group)
        if pool.size < 2 or self.places < 2:
            raise ConfigError(
                f"{pool.size} prompts and {self.places} groups a round; pairs need two of each: "
                "enlarge the pool or the budget"
            )
        if not 0 <= config.hard[0] < config.hard[1] <= config.easy[0] < config.easy[1] <= 1:
            raise ConfigError(
                f"hard {config.hard}, easy {config.easy}; give two bands in [0, 1] in this order"
            )
        self.config = config
        self.tracker = SuccessTracker(config.discount)

    def request(self, generator: torch.Generator) -> Request:
        rate = rates(self.tracker, self.pool.size)
        half = min((self.places + 1) // 2, self.pool.size // 2)
        low = first(-outside(rate, self.config.hard), half, generator)
        rest = torch.where(
            torch.isin(torch.arange(len(rate)), low), torch.inf, outside(rate, self.config.easy)
        )
        high = first(-rest, min(half, self.places - half), generator)
        order = torch.stack([low[: len(high)], high], 1).flatten()
        return in_groups(torch.cat([order, low[len(high) :]]), self.places, self.group)

    def hard(self, prompts: Tensor) -> Tensor:
        """bool [P]: whether the success rate so far is below the middle of the two bands."""
        middle = (self.config.hard[1] + self.config.easy[0]) / 2
        return rates(self.tracker, self.pool.size)[prompts] < middle

    def observe(self, outcome: Outcome, generator: torch.Generator) -> None:
        remember(self.tracker, outcome)
        super().observe(outcome, generator)


def outside(rate: Tensor, band: tuple[float, float]) -> Tensor:
    """How far each rate [N] is from the open `band`; 0 inside."""
    low, high = band
    inside = (rate > low) & (rate < high)
    return torch.where(inside, 0.0, torch.maximum(low - rate, rate - high).clamp_min(0) + 1e-9)
