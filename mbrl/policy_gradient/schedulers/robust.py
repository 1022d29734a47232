"""Group distributionally robust schedulers: bins of prompts by running success rate, which an
adversary weighs by how hard they stay, or gives rollouts by how much their rewards vary."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.config import Count, CountOrZero, NonNegative, Probability, Settings
from mbrl.errors import ConfigError
from mbrl.policy_gradient.measures.trackers import SuccessTracker
from mbrl.policy_gradient.schedulers.allocation import (
    draw,
    in_groups,
    in_range,
    rates,
    remember,
    share_out,
    successes,
    tally,
    water_level,
)
from mbrl.policy_gradient.schedulers.scheduler import Outcome, Pool, Request, Scheduler
from mbrl.policy_gradient.schedulers.uniform import Epochs


def bin_of(rate: Tensor, bins: int) -> Tensor:
    """int64 [N]: the bin of success rates in [0, 1], 0 the hardest; all are equally wide."""
    return (rate * bins).long().clamp(0, bins - 1)


@dataclass(frozen=True)
class PromptGDROConfig(Settings):
    bins: Count = 4  # equally wide in the success rate
    rate: NonNegative = 0.5  # step of the log-weights
    smooth: Probability = 0.9  # what of the loss estimate stays from round to round
    forget: Probability = 0.05  # share by which log-weights shrink in a round
    explore: Probability = 0.1  # share of prompts that is drawn evenly over bins
    discount: Probability = 0.9  # of an answer by the next answer to its prompt


class PromptGDRO(Scheduler):
    """Bins are drawn by weights that grow exponentially with the bin's loss (1 - success), prompts
    evenly within a bin. A bin's loss is divided by the probability of its draw, so that bins that
    are seen more do not weigh more for it, and is smoothed over rounds.

    Prompt-GDRO of "Group Distributionally Robust Optimization-Driven Reinforcement Learning for LLM
    Reasoning", arXiv 2601.19280.
    """

    beliefs = ("tracker", "log_weights", "losses", "updates")

    def __init__(
        self, pool: Pool, budget: int, group: int, config: PromptGDROConfig = PromptGDROConfig()
    ) -> None:
        super().__init__(pool, budget, group)
        if config.bins < 2 or config.rate <= 0:
            raise ConfigError(
                f"bins {config.bins}, rate {config.rate:g}; give at least 2 bins and a rate above 0"
            )
        in_range("smooth", config.smooth, 0, 1 - 1e-9)
        self.config = config
        self.tracker = SuccessTracker(config.discount)
        self.log_weights = torch.zeros(config.bins, dtype=torch.float64)
        self.losses = torch.zeros(config.bins, dtype=torch.float64)
        self.updates = 0

    def probabilities(self) -> tuple[Tensor, Tensor]:
        """([B] probability of every bin, 0 for those without prompts; [N] bin of every prompt)."""
        bins = bin_of(rates(self.tracker, self.pool.size), self.config.bins)
        there = torch.bincount(bins, minlength=self.config.bins) > 0
        weight = torch.softmax(self.log_weights.masked_fill(~there, -torch.inf), 0)
        even = there.double() / there.sum()
        return (1 - self.config.explore) * weight + self.config.explore * even, bins

    def request(self, generator: torch.Generator) -> Request:
        probability, bins = self.probabilities()
        size = torch.bincount(bins, minlength=self.config.bins)
        order = draw(probability[bins] / size[bins], self.places, generator)
        return in_groups(order, self.places, self.group)

    def observe(self, outcome: Outcome, generator: torch.Generator) -> None:
        probability, bins = self.probabilities()  # those of the request: nothing was learned since
        lost = torch.zeros_like(self.losses).index_add(
            0, bins[outcome.prompts], 1 - successes(outcome).rewards.double()
        )
        estimate = lost / max(len(outcome.prompts), 1) / probability.clamp_min(1e-9)
        self.updates += 1
        self.losses = self.config.smooth * self.losses + (1 - self.config.smooth) * estimate
        steady = self.losses / (1 - self.config.smooth**self.updates)
        grown = (1 - self.config.forget) * self.log_weights + self.config.rate * steady
        self.log_weights = grown - grown.max()
        remember(self.tracker, outcome)
        super().observe(outcome, generator)


@dataclass(frozen=True)
class RolloutGDROConfig(Settings):
    bins: Count = 4  # equally wide in the success rate
    fewest: CountOrZero = 2  # rollouts of a prompt
    most: Count = 64
    smooth: Probability = 0.8  # what of a bin's variance stays from round to round
    discount: Probability = 0.9  # of an answer by the next answer to its prompt


class RolloutGDRO(Scheduler):
    """Prompts in shuffled passes; a prompt's rollouts go with the root of the variance of rewards
    in its bin, at a price that makes their mean `group`. That makes the sum of variance / rollouts
    over prompts least. `price` is what one more rollout would take off that sum.

    Rollout-GDRO of "Group Distributionally Robust Optimization-Driven Reinforcement Learning for
    LLM Reasoning", arXiv 2601.19280.
    """

    beliefs = ("epochs", "tracker", "variances")

    def __init__(
        self, pool: Pool, budget: int, group: int, config: RolloutGDROConfig = RolloutGDROConfig()
    ) -> None:
        super().__init__(pool, budget, group)
        if not 2 <= config.fewest <= group <= config.most or config.bins < 2:
            raise ConfigError(
                f"fewest {config.fewest}, most {config.most}, bins {config.bins} with groups of "
                f"{group}; give 2 <= fewest <= group <= most and at least 2 bins"
            )
        self.config = config
        self.epochs = Epochs(pool.size)
        self.tracker = SuccessTracker(config.discount)
        self.variances = torch.full((config.bins,), 0.25, dtype=torch.float64)
        self.price = 0.0

    def request(self, generator: torch.Generator) -> Request:
        places = min(self.places, self.pool.size)
        ids = self.epochs.take(places, generator)
        bins = bin_of(rates(self.tracker, self.pool.size)[ids], self.config.bins)
        root = self.variances[bins].sqrt()
        total = len(ids) * self.group
        low = torch.full_like(root, self.config.fewest)
        high = torch.full_like(root, self.config.most)
        level = water_level(root, total, low, high)
        self.price = 0.0 if level == 0 else level**-2
        return Request.of(ids, share_out(root, total, low, high))

    def observe(self, outcome: Outcome, generator: torch.Generator) -> None:
        counted = tally(successes(outcome), self.pool.size)
        ids = (counted.count > 1).nonzero().flatten()
        bins = bin_of(rates(self.tracker, self.pool.size)[ids], self.config.bins)
        for b in bins.unique().tolist():
            # Few rollouts say little of a prompt's variance, so those with more weigh more.
            free = (counted.count[ids] - 1)[bins == b]
            seen = (free * counted.variance[ids][bins == b]).sum() / free.sum()
            self.variances[b] += (1 - self.config.smooth) * (seen - self.variances[b])
        remember(self.tracker, outcome)
        super().observe(outcome, generator)
