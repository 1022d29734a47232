"""Logged rows with goals other than those they were recorded for: states that were reached later in
the same episode, any states, or the one that the row is at. Reward and end follow the new goal.

The proportions are OGBench's (arXiv 2410.20092; ogbench at 1d41409, impls/utils/datasets.py), and
with them goals by hindsight (Hindsight Experience Replay, arXiv 1707.01495). Differences: uniform
future goals have equal odds; theirs round, so that the first and the last have half of the others'.
An episode's last state, which no row leaves, is no goal of theirs; here it is one where
`last_states` says so.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from algorithms.sources.episode_rows import EpisodeRows
from mbrl.buffer import Batch, Rows
from mbrl.collector import CollectorConfig
from mbrl.config import Probability, Settings
from mbrl.errors import ConfigError, DataError
from mbrl.goals import GoalEntries, count_unleft
from mbrl.training import Metrics
from mbrl.types import Dataset, Spec, Transitions


@dataclass(frozen=True)
class GoalDraws(Settings):
    """Where goals come from; the three shares add up to 1."""

    current: Probability = 0.2  # share of goals that are the state of the row itself
    future: Probability = 0.5  # that are a later state of its episode
    random: Probability = 0.3  # that are the state of any row
    geometric: bool = (
        True  # later states at geometric distances of mean 1 / (1 - gamma); or uniform
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = (self.current, self.future, self.random)
        if not math.isclose(sum(shares), 1.0, abs_tol=1e-6):
            raise ConfigError(
                f"current, future and random are {shares}, which add up to {sum(shares):g}; they "
                "must add up to 1"
            )


FUTURE = GoalDraws(0.0, 1.0, 0.0, geometric=False)  # OGBench's of policies


class Drawn(NamedTuple):
    """Goals [B, G], whether each is the state of its row [B] bool, and how many steps of the
    row's episode it lies ahead [B] int64 (as many as there are for a random one)."""

    goal: Tensor
    here: Tensor
    steps: Tensor


class RelabelledRows:
    """Batches of logged rows with new goals; experience joins by whole episodes.

    `obs` and `next_obs` hold the goals of `values`; the reward is 0 and the discount 0 where a row
    is at its goal, which is whether the goal was taken from this row and no matter of distance,
    else -1 and gamma: the end of the recorded task is none for another goal. `policy_goal` are
    those of `policy`. With `steps` above 0, `waypoint` is the observation that many steps ahead, or
    at the policy's goal where that is nearer, and `low_goal` what is achieved that many steps
    ahead, at most at the episode's end. None: goals as recorded.

    With `entering`, as many rows follow that enter their goals: the state after each of them is its
    goal, which is drawn as those of `values` are. Their rewards say nothing.

    Without `last_states` a goal is a state that some row leaves: no row is ever at the last state
    of an episode, so that nothing would hold its value as a goal at 0 where values follow from next
    values. The last row's later state is then the one that it is at.
    """

    model: Any = None
    learned: Any = None
    mixes = False

    def __init__(
        self,
        spec: Spec,
        gamma: float,
        batch_size: int,
        device: torch.device,
        *,
        values: GoalDraws | None = None,
        policy: GoalDraws | None = None,
        steps: int = 0,
        entering: bool = False,
        last_states: bool = True,
    ) -> None:
        self.gamma, self.batch_size, self.device = gamma, batch_size, device
        self.values, self.policy, self.steps, self.entering = values, policy, steps, entering
        self.spec, self.last_states = spec, last_states
        self.entries = GoalEntries(spec).to(device)
        self.real = EpisodeRows(
            spec, gamma, batch_size, device, widths={"ahead": 0}, columns=rows_ahead
        )

    @property
    def collection(self) -> CollectorConfig:
        return self.real.collection

    @collection.setter
    def collection(self, value: CollectorConfig) -> None:
        self.real.collection = value

    def allows(self, collection: CollectorConfig) -> None:
        """Raises `ConfigError` for settings that experience which has begun cannot follow."""
        self.real.allows(collection)

    @property
    def logged(self) -> int:
        return self.real.logged

    @property
    def rows(self) -> Rows:
        """The rows as they were recorded."""
        return self.real.rows

    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
        """Put the dataset on the device, but for rows whose next observation nobody recorded: no
        goal lies behind them. Raises `ConfigError` for steps of different length: values count
        steps; `DataError` where no row is left, and without `last_states` where no row has another
        one of its episode behind it."""
        if dataset.transitions.duration is not None:
            raise ConfigError(
                f"the steps of {dataset.provenance.card} differ in length, and values of goals "
                "count steps; import the log without `step`"
            )
        followed = _followed(dataset)
        if not self.last_states and int(rows_ahead(followed.transitions)["ahead"].max()) < 2:
            raise DataError(
                f"{dataset.provenance.card}: no episode has two rows, and goals are states that a "
                "later row of an episode leaves; end episodes where they end alone, or take gcbc, "
                "contrastive_rl or smore, whose goals may be next observations"
            )
        logged = followed.transitions
        entries = GoalEntries(self.spec).to(logged.obs.device)  # where the data are
        unleft = 0 if self.last_states else count_unleft(logged, entries)
        if unleft > 0:
            warnings.warn(
                f"{dataset.provenance.card}: {unleft} goals end episodes and are at no row; "
                "nothing is learned of them, as goals are states that rows leave: "
                "mbrl.goals.with_last_states(data) or `data export --last-states` adds rows that "
                "stay there",
                stacklevel=2,
            )
        self.real.prepare(followed, on_progress)

    def observe(self, data: Transitions, step: int) -> None:
        """Add a row of each copy of the task."""
        self.real.observe(data, step)

    def advance(self, step: int, generator: Generator) -> Metrics:
        return {}

    def sample(self, generator: Generator) -> Batch:
        """A batch with new goals."""
        rows, entries = self.rows, self.entries
        index = rows.sample_index(self.batch_size, generator)
        batch = rows.batch(rows.gather(index))
        if self.values is not None:
            drawn = self.draw(self.values, index, batch, generator)
            alive = 1.0 - drawn.here.to(batch.reward)
            batch = batch._replace(
                obs=entries.with_goal(batch.obs, drawn.goal),
                next_obs=entries.with_goal(batch.next_obs, drawn.goal),
                reward=-alive,
                discount=self.gamma * alive,
            )
        if self.policy is not None:
            drawn = self.draw(self.policy, index, batch, generator)
            batch = batch._replace(policy_goal=drawn.goal)
            if self.steps > 0:
                low = self.furthest(batch).clamp_max(self.steps)
                later = self.later_obs(batch, index, torch.minimum(low, drawn.steps))
                goal = entries.achieved_of(self.later_obs(batch, index, low))
                batch = batch._replace(waypoint=later, low_goal=goal)
        if self.entering:
            batch = _joined(batch, self.entering_rows(generator))
        return batch

    def draw(self, draws: GoalDraws, index: Tensor, batch: Batch, generator: Generator) -> Drawn:
        """Goals for the rows at `index` [B], which are `batch`."""
        count, kind, device = len(index), batch.obs.dtype, self.device
        unit = torch.rand(2, count, generator=generator, device=device, dtype=kind)
        furthest = self.furthest(batch)
        steps = distances(unit[1], furthest, self.gamma if draws.geometric else None)
        steps = torch.where(unit[0] < draws.current, 0, steps)
        goal = self.entries.achieved_of(self.later_obs(batch, index, steps))
        here = steps == 0
        if draws.random == 0:
            return Drawn(goal, here, steps)
        other = self.rows.sample_index(count, generator)
        random = unit[0] >= 1.0 - draws.random
        anywhere = self.entries.achieved_of(self.rows.obs(other))
        goal = torch.where(random[:, None], anywhere, goal)
        here = torch.where(random, other == index, here)
        return Drawn(goal, here, torch.where(random, furthest, steps))

    def furthest(self, batch: Batch) -> Tensor:
        """Steps [B] int64 to the last state of each row's episode that may be a goal."""
        return _ahead(batch) if self.last_states else _ahead(batch) - 1

    def later_obs(self, batch: Batch, index: Tensor, steps: Tensor) -> Tensor:
        """Observations [B, S] that many steps [B] after the rows at `index` [B], which are `batch`;
        rows of an episode follow one another, also where a full ring begins anew."""
        rows = self.rows
        at = (index + steps.clamp_min(1) - 1) % len(rows)
        later = rows.batch(rows.gather(at)).next_obs
        return torch.where((steps > 0)[:, None], later, batch.obs)

    def entering_rows(self, generator: Generator) -> Batch:
        """Rows whose next state is their goal."""
        assert self.values is not None
        rows, entries = self.rows, self.entries
        index = rows.sample_index(self.batch_size, generator)
        ahead = _ahead(rows.batch(rows.gather(index)))
        unit = torch.rand(2, len(index), generator=generator, device=self.device)
        steps = distances(unit[0], ahead, self.gamma if self.values.geometric else None)
        # A row's own state is entered by the row before it, as any state is.
        steps = torch.where(unit[1] < self.values.random + self.values.current, 1, steps)
        batch = rows.batch(rows.gather((index + steps - 1) % len(rows)))
        goal = entries.achieved_of(batch.next_obs)
        return batch._replace(
            obs=entries.with_goal(batch.obs, goal), next_obs=entries.with_goal(batch.next_obs, goal)
        )

    def state_dict(self) -> dict[str, Any]:
        return self.real.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.real.load_state_dict(state)


def rows_ahead(data: Transitions) -> dict[str, Tensor]:
    """The column `ahead` [N]: how many rows an episode has from each row on, itself included, as
    far as the first that is never drawn."""
    last = data.ends.clone()
    last[-1] = True
    if data.weight is not None:
        last[:-1] |= data.weight[1:] == 0
    index = torch.arange(len(data), device=last.device)
    ends = torch.nonzero(last).flatten()
    return {"ahead": (ends[torch.searchsorted(ends, index)] - index + 1).float()}


def distances(unit: Tensor, ahead: Tensor, gamma: float | None) -> Tensor:
    """Numbers of steps [B] int64 from 1 to `ahead` [B] for uniform draws `unit` [B] in [0, 1):
    geometric, P(k) = (1 - gamma) gamma^(k - 1), what lies beyond the end at the end; uniform
    without `gamma`. With gamma 0 all are 1. Where `ahead` is 0, so are they."""
    if gamma is None:
        steps = (unit * ahead).long() + 1
    elif gamma == 0:
        steps = torch.ones_like(ahead)
    else:
        steps = (torch.log1p(-unit) / math.log(gamma)).floor().long() + 1
    return torch.minimum(steps, ahead)


def _ahead(batch: Batch) -> Tensor:
    assert batch.ahead is not None
    return batch.ahead.long()


def _joined(first: Batch, second: Batch) -> Batch:
    """The rows of two batches one after the other, in the fields that both have."""
    values: dict[str, Any] = {}
    for name in Batch._fields:
        one, other = getattr(first, name), getattr(second, name)
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            values[name] = torch.cat([one, other])
    return Batch(**values)


def _followed(dataset: Dataset) -> Dataset:
    """The rows whose next observation is known; where the one behind a row is not, the episode is
    cut after that row."""
    data = dataset.transitions
    if data.next_known is None or bool(data.next_known.all()):
        return dataset
    if not bool(data.next_known.any()):
        raise DataError(f"{dataset.provenance.card}: no row has a next observation; give next_obs")
    return dataset.with_transitions(data.with_known_next())
