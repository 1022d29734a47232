"""Curricula: stages of prompts and group sizes (DRIVE), a horizon that grows (ScalingInter), and
rollouts by a task's success rate (DART)."""

from bisect import bisect_right
from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.config import Count, CountOrZero, NonNegative, Probability, Settings
from mbrl.errors import ConfigError
from mbrl.policy_gradient.measures.trackers import SuccessTracker
from mbrl.policy_gradient.schedulers.allocation import (
    in_groups,
    in_range,
    rates,
    remember,
    successes,
    tally,
)
from mbrl.policy_gradient.schedulers.scheduler import Outcome, Pool, Request, Scheduler
from mbrl.policy_gradient.schedulers.uniform import Epochs


@dataclass(frozen=True)
class Stage(Settings):
    """`rounds` with `groups` usual groups for a prompt, on the `hardest` share of the pool;
    `window` is the longest answer, None: the trainer's own."""

    rounds: Count
    groups: Count = 1
    hardest: Probability = 1.0
    window: Count | None = None


@dataclass(frozen=True)
class DRIVEConfig(Settings):
    stages: tuple[Stage, ...] = (  # one after the other
        Stage(32),
        Stage(64, groups=8, hardest=0.41),
        Stage(32, groups=8, hardest=0.29),
        Stage(32, groups=8, hardest=0.14),
    )
    discount: Probability = 0.9  # of an answer by the next answer to its prompt


class DRIVE(Scheduler):
    """Stages: first all prompts with small groups, then the hardest ones with large groups. A stage
    keeps those of the stage before that have the lowest running success rates when it begins; the
    last one lasts. `window` is what the trainer limits answers to.

    "DRIVE: Data Curation Best Practices for Reinforcement Learning with Verifiable Reward in
    Competitive Code Generation", arXiv 2511.06307.
    """

    beliefs = ("tracker", "epochs", "kept", "at")

    def __init__(
        self, pool: Pool, budget: int, group: int, config: DRIVEConfig = DRIVEConfig()
    ) -> None:
        super().__init__(pool, budget, group)
        if not config.stages:
            raise ConfigError("stages is empty; give at least one Stage")
        for stage in config.stages:
            in_range("hardest", stage.hardest, 1e-9, 1)
            if stage.rounds < 1 or not 1 <= stage.groups * group <= budget:
                raise ConfigError(
                    f"{stage}; give at least 1 round, and groups from 1 to {budget // group}, what "
                    f"the budget {budget} pays in groups of {group}"
                )
        shares = [stage.hardest for stage in config.stages]
        if shares != sorted(shares, reverse=True):
            raise ConfigError(f"hardest shares {shares}; a later stage keeps at most as many")
        self.config = config
        self.tracker = SuccessTracker(config.discount)
        self.epochs = Epochs(pool.size)
        self.kept = torch.ones(pool.size, dtype=torch.bool)  # by the stage that was begun last
        self.at = -1  # its number

    @property
    def stage(self) -> int:
        """Number of the stage of this round, from 0."""
        ends = torch.tensor([s.rounds for s in self.config.stages]).cumsum(0)
        return min(int((ends <= self.rounds).sum()), len(self.config.stages) - 1)

    @property
    def longest_turn(self) -> int | None:
        return self.config.stages[self.stage].window

    def hardest(self) -> Tensor:
        """int64 [P]: the prompts of this round's stage, hardest first."""
        rate = rates(self.tracker, self.pool.size)
        ids = rate.masked_fill(~self.kept, torch.inf).argsort(stable=True)[: int(self.kept.sum())]
        if self.at != self.stage:
            ids = ids[: max(1, round(self.config.stages[self.stage].hardest * self.pool.size))]
            self.kept = torch.zeros_like(self.kept).index_fill(0, ids, True)
            self.at = self.stage
        return ids

    def request(self, generator: torch.Generator) -> Request:
        wide = self.config.stages[self.stage].groups * self.group
        places = self.budget // wide
        if self.config.stages[self.stage].hardest == 1:
            return in_groups(self.epochs.take(places, generator), places, wide)
        ids = self.hardest()
        return in_groups(ids[torch.randperm(len(ids), generator=generator)], places, wide)

    def observe(self, outcome: Outcome, generator: torch.Generator) -> None:
        remember(self.tracker, outcome)
        super().observe(outcome, generator)


class Horizon:
    """The longest episode at a step: `lengths`, each for `every` steps, the last one for good. For
    turns of an agent as for steps in control.

    ScalingInter-RL of "AgentGym-RL: Training LLM Agents for Long-Horizon Decision Making through
    Multi-Turn Reinforcement Learning", arXiv 2509.08755, as in the authors' code.
    """

    def __init__(self, lengths: tuple[int, ...], every: int | tuple[int, ...]) -> None:
        """`every`: one number of steps for all stages, or the steps [len(lengths) - 1] at which the
        length changes, ascending."""
        starts = (
            tuple(every * i for i in range(1, len(lengths))) if isinstance(every, int) else every
        )
        if not lengths or min(lengths) < 1 or list(lengths) != sorted(lengths):
            raise ConfigError(f"lengths {lengths}; give at least one, from 1, none below the last")
        if len(starts) != len(lengths) - 1 or list(starts) != sorted(set(starts)):
            raise ConfigError(
                f"every {every} with {len(lengths)} lengths; give one number above 0, or "
                f"{len(lengths) - 1} steps that ascend"
            )
        if starts and starts[0] < 1:
            raise ConfigError(f"every {every}; a stage lasts at least 1 step")
        self.lengths, self.starts = lengths, starts

    def __call__(self, step: int) -> int:
        return self.lengths[bisect_right(self.starts, step)]


@dataclass(frozen=True)
class DARTConfig(Settings):
    fewest: CountOrZero = 2  # rollouts of a task that always succeeds
    threshold: Probability = 0.6  # success rate up to which a task gets a whole group
    slack: NonNegative = 1.5  # longest episode, in lengths of the task's longest success
    discount: Probability = 0.9  # of an episode by the next one of its task


class DART(Scheduler):
    """Whole groups for tasks that succeed seldom, and linearly fewer rollouts above `threshold`;
    what is saved goes to further tasks. A task's episodes may last `slack` times its longest
    success (by the signal "turns", else "length"); where all of a task's rollouts fail, one is to
    be replaced by an earlier success.

    "Efficient Multi-turn RL for GUI Agents via Decoupled Training and Adaptive Data Curation",
    arXiv 2509.23866.
    """

    beliefs = ("tracker", "epochs", "longest")

    def __init__(
        self, pool: Pool, budget: int, group: int, config: DARTConfig = DARTConfig()
    ) -> None:
        super().__init__(pool, budget, group)
        in_range("threshold", config.threshold, 0, 1 - 1e-9)
        if not 1 <= config.fewest <= group or config.slack < 1:
            raise ConfigError(
                f"fewest {config.fewest}, slack {config.slack:g}; give from 1 to a group, {group}, "
                "and a slack of at least 1"
            )
        self.config = config
        self.tracker = SuccessTracker(config.discount)
        self.epochs = Epochs(pool.size)
        self.longest = torch.zeros(pool.size, dtype=torch.float64)

    def counts(self) -> Tensor:
        """int64 [N]: rollouts for each task by its success rate."""
        over = (rates(self.tracker, self.pool.size) - self.config.threshold).clamp_min(0)
        cut = over / (1 - self.config.threshold) * (self.group - self.config.fewest)
        return self.group - (cut - 1e-9).ceil().long().clamp_min(0)

    def request(self, generator: torch.Generator) -> Request:
        counts = self.counts()
        reach = min(self.budget // self.config.fewest, self.pool.size)
        ids = self.epochs.take(reach, generator)
        fits = counts[ids].cumsum(0) <= self.budget
        taken = int(fits.sum())
        self.epochs.order = torch.cat([ids[taken:], self.epochs.order])  # next round's first
        return Request.of(ids[:taken], counts[ids[:taken]])

    def longest_episodes(self, prompts: Tensor, limit: int) -> Tensor:
        known = self.longest[prompts]
        longest = (known * self.config.slack).ceil().clamp_max(limit)
        return torch.where(known > 0, longest, float(limit)).long()

    def failed(self, outcome: Outcome) -> Tensor:
        """Those none of whose rollouts earned anything."""
        counted = tally(outcome, self.pool.size)
        return ((counted.count > 0) & (counted.total <= 0)).nonzero().flatten()

    def observe(self, outcome: Outcome, generator: torch.Generator) -> None:
        remember(self.tracker, successes(outcome))
        name = "turns" if "turns" in outcome.signals else "length"
        if name in outcome.signals:
            good = outcome.rewards > 0
            lengths = outcome.signal(name)[good].double()
            self.longest = self.longest.scatter_reduce(0, outcome.prompts[good], lengths, "amax")
        super().observe(outcome, generator)
