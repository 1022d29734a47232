"""Schedulers that look at a first pass and buy further rollouts of the same prompts in the same
round: DARS, Reinforce-Ada, XRPO."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.config import Count, Probability, Settings
from mbrl.errors import ConfigError
from mbrl.policy_gradient.axes.option import one_of
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.schedulers.allocation import (
    first_places,
    in_range,
    share_out,
    spread,
    successes,
    tally,
)
from mbrl.policy_gradient.schedulers.scheduler import Outcome, Pool, Request, Scheduler


@dataclass(frozen=True)
class DARSConfig(Settings):
    schedule: str = "equal"  # equal treatment; or "hardness"-weighted
    std: bool = False  # whether advantages are divided by the group's deviation
    most: Count = 32  # rollouts of one prompt
    first: Probability = 0.5  # share of the budget for the first pass


class DARS(Scheduler):
    """After `group` rollouts of each, prompts that succeed less than half the time get more, until
    the sum of their advantages' sizes is that of a prompt at one half (`equal`), or 2 (1 - p) times
    as much (`hardness`). What the budget cannot pay is cut in proportion.

    "Depth-Breadth Synergy in RLVR: Unlocking LLM Reasoning Gains with Adaptive Exploration", arXiv
    2508.13755; the table is that of the authors' code.
    """

    def __init__(
        self, pool: Pool, budget: int, group: int, config: DARSConfig = DARSConfig()
    ) -> None:
        super().__init__(pool, budget, group)
        one_of(config.schedule, ("equal", "hardness"), "schedule")
        if config.most < group:
            raise ConfigError(f"most is {config.most}; give at least a group, {group}")
        self.config = config

    def request(self, generator: torch.Generator) -> Request:
        places = first_places(self.budget, self.config.first, self.group)
        return spread(self.pool.size, min(places, self.pool.size), self.group, generator)

    def more(self, so_far: Outcome, generator: torch.Generator) -> Request | None:
        counted = tally(successes(so_far), self.pool.size)
        if bool((counted.count > self.group).any()):  # the second pass is over
            return None
        ids = counted.prompts
        extra = depth(counted.mean[ids], self.group, self.config)
        left = self.budget - len(so_far.prompts)
        if int(extra.sum()) > left:
            extra = share_out(extra, left, 0, extra)
        request = Request.of(ids, extra)
        return request if request.total else None


def depth(accuracy: Tensor, rollouts: int, config: DARSConfig = DARSConfig()) -> Tensor:
    """int64, as `accuracy`: further rollouts for prompts of this accuracy after `rollouts`. The sum
    of n advantages' sizes is n S, with S = 2 p (1 - p), or 2 sqrt(p (1 - p)) when they are divided
    by the deviation; p = 0 counts as half a success."""
    p = torch.where(accuracy <= 1e-6, 0.5 / rollouts, accuracy.double())
    spread_ = p * (1 - p)
    size = 2 * spread_.sqrt() if config.std else 2 * spread_
    peak = rollouts * (1.0 if config.std else 0.5)
    goal = peak * (2 * (1 - p) if config.schedule == "hardness" else torch.ones_like(p))
    extra = ((goal - rollouts * size) / size - 1e-9).ceil().clamp(0, config.most - rollouts)
    return torch.where(p >= 0.5, 0.0, extra).long()


@dataclass(frozen=True)
class ReinforceAdaConfig(Settings):
    choice: str = "balanced"  # half a group of each kind; or "positive": one right answer
    step: Count = 8  # rollouts of a prompt in one pass
    passes: Count = 4  # at most
    right: Probability = 0.7  # rewards above it are right
    first: Probability = 0.5  # share of the budget for the first pass


class ReinforceAda(Scheduler):
    """Passes of `step` rollouts over the prompts that do not have both kinds of answers yet; of
    each prompt then `group` answers are kept, half of them right where there are enough, the first
    ones of either kind. `statistics` are those of all answers, kept or not.

    "Reinforce-Ada: An Adaptive Sampling Framework for Reinforce-Style LLM Training", arXiv
    2510.04996, as in the authors' code.
    """

    fulfils = (Requirement.BOTH_KINDS,)
    of_all = True

    def __init__(
        self, pool: Pool, budget: int, group: int, config: ReinforceAdaConfig = ReinforceAdaConfig()
    ) -> None:
        super().__init__(pool, budget, group)
        one_of(config.choice, ("balanced", "positive"), "choice")
        if not 1 <= config.step <= budget or config.passes < 1:
            raise ConfigError(
                f"step {config.step}, passes {config.passes}; give a step from 1 to the budget "
                f"{budget} and at least one pass"
            )
        self.config = config

    def request(self, generator: torch.Generator) -> Request:
        places = first_places(self.budget, self.config.first, self.config.step)
        return spread(self.pool.size, min(places, self.pool.size), self.config.step, generator)

    def unfinished(self, so_far: Outcome) -> Tensor:
        """int64 [P]: the prompts that have rollouts and still lack a kind."""
        kinds = Outcome(so_far.prompts, (so_far.rewards > self.config.right).double())
        counted = tally(kinds, self.pool.size)
        if self.config.choice == "positive":
            lacking = counted.total < 1
        else:
            half = self.group // 2
            wrong = counted.count - counted.total
            lacking = (counted.total < half) | (wrong < self.group - half)
        return (lacking & (counted.count > 0)).nonzero().flatten()

    def more(self, so_far: Outcome, generator: torch.Generator) -> Request | None:
        unfinished = self.unfinished(so_far)
        count = torch.bincount(so_far.prompts, minlength=self.pool.size)[unfinished]
        unfinished = unfinished[count < self.config.step * self.config.passes]
        left = self.budget - len(so_far.prompts)
        if not len(unfinished) or not left:
            return None
        mixed = unfinished[torch.randperm(len(unfinished), generator=generator)]
        equal = torch.ones(len(mixed))
        return Request.of(mixed, share_out(equal, left, 0, self.config.step))

    def keep(self, outcome: Outcome, generator: torch.Generator) -> Tensor:
        right = outcome.rewards > self.config.right
        kept = torch.zeros(len(right), dtype=torch.bool)
        for prompt in outcome.prompts.unique().tolist():
            mine = outcome.prompts == prompt
            good, bad = ((mine & kind).nonzero().flatten() for kind in (right, ~right))
            of_good = min(self.group // 2, len(good))
            of_bad = min(self.group - of_good, len(bad))
            of_good = min(self.group - of_bad, len(good))
            kept[good[:of_good]] = True
            kept[bad[:of_bad]] = True
        return kept

    def statistics(self, outcome: Outcome) -> tuple[Tensor, Tensor]:
        """([R], [R]) mean and deviation (of a sample) of right answers among all of each rollout's
        prompt: what advantages of the kept ones are taken with."""
        kinds = Outcome(outcome.prompts, (outcome.rewards > self.config.right).double())
        counted = tally(kinds, self.pool.size)
        return counted.mean[outcome.prompts], counted.variance.sqrt()[outcome.prompts]


@dataclass(frozen=True)
class XRPOConfig(Settings):
    base: Count = 4  # rollouts of every prompt in the first pass
    step: Count = 16  # rollouts that are placed before the next look
    level: Probability = 0.95  # of the confidence interval of a prompt's mean reward
    explore: Probability = 0.1  # weight of the bonus for prompts with few rollouts
    first: Probability = 0.5  # share of the budget for the first pass


class XRPO(Scheduler):
    """One rollout after the other to the prompt whose confidence interval it narrows most: the gain
    is h(n) - h(n + 1) with half width h(n) = t s / sqrt(n), plus explore sqrt(log(1 + T) / n), T
    all rollouts so far. `unsolved` are the prompts that the trainer may seed with worked examples.

    "XRPO: Pushing the limits of GRPO with Targeted Exploration and Exploitation".
    """

    def __init__(
        self, pool: Pool, budget: int, group: int, config: XRPOConfig = XRPOConfig()
    ) -> None:
        super().__init__(pool, budget, group)
        if not 2 <= config.base <= budget or config.step < 1 or config.explore < 0:
            raise ConfigError(
                f"base {config.base}, step {config.step}, explore {config.explore:g}; give a base "
                f"from 2 to the budget {budget}, a step of at least 1, and explore from 0"
            )
        in_range("level", config.level, 0, 1, ends=False)
        self.config = config
        from scipy import special  # here, as it takes long to import

        quantile = special.stdtrit(range(1, budget + 2), (1 + config.level) / 2)
        self.quantiles = torch.cat([torch.full((2,), torch.inf), torch.tensor(quantile)])

    def request(self, generator: torch.Generator) -> Request:
        places = first_places(self.budget, self.config.first, self.config.base)
        return spread(self.pool.size, min(places, self.pool.size), self.config.base, generator)

    def more(self, so_far: Outcome, generator: torch.Generator) -> Request | None:
        left = min(self.config.step, self.budget - len(so_far.prompts))
        if not left:
            return None
        counted = tally(so_far, self.pool.size)
        ids = counted.prompts
        count, std = counted.count[ids].long(), counted.variance[ids].sqrt()
        placed = torch.zeros_like(count)
        for i in range(left):
            n = count + placed
            bonus = math.log1p(len(so_far.prompts) + i) / n
            gain = self.half_width(std, n) - self.half_width(std, n + 1)
            placed[(gain + self.config.explore * bonus.sqrt()).argmax()] += 1
        return Request.of(ids, placed)

    def half_width(self, std: Tensor, count: Tensor) -> Tensor:
        """Of the confidence interval of the mean of `count` rewards with deviation `std`."""
        return self.quantiles[count] * std / count.double().sqrt()

    def unsolved(self, so_far: Outcome) -> Tensor:
        """int64 [P]: prompts none of whose rollouts earned anything."""
        counted = tally(so_far, self.pool.size)
        return ((counted.count > 0) & (counted.total <= 0)).nonzero().flatten()
