"""The contract of rollout scheduling: which prompts (or tasks) get how many rollouts in a round.

A scheduler knows prompts by their ids alone, and what their rollouts earned. It never sees text,
environments or gradients, so language and control use the same ones.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from mbrl.errors import CheckpointError, ConfigError
from mbrl.policy_gradient.requirements import Requirement


@dataclass(frozen=True)
class Pool:
    """What a scheduler may know of `size` prompts, whose ids are 0 to size - 1: `features` float
    [N, D] (an embedding, the parameters of a task), `levels` int64 [N] (difficulty, from 0) and
    `families` int64 [N] (prompts that differ in their level alone, from 0)."""

    size: int
    features: Tensor | None = None
    levels: Tensor | None = None
    families: Tensor | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"a pool of {self.size} prompts; give at least 1")
        for name in ("features", "levels", "families"):
            value = getattr(self, name)
            if value is not None and (
                len(value) != self.size or value.ndim != 1 + (name[:2] == "fe")
            ):
                raise ConfigError(
                    f"{name} has shape {tuple(value.shape)} in a pool of {self.size} prompts; give "
                    f"{'[N, D]' if name == 'features' else '[N]'} with N = {self.size}"
                )

    def needs(self, *names: str) -> None:
        """Raises `ConfigError` that names the fields which this pool lacks."""
        missing = [name for name in names if getattr(self, name) is None]
        if missing:
            raise ConfigError(
                f"the pool has no {' and no '.join(missing)}, which this scheduler reads; give "
                "them in Pool, or take a scheduler that counts successes alone"
            )


@dataclass(frozen=True)
class Request:
    """Rollouts wanted: `rollouts` int64 [P] of `prompts` int64 [P], ids that differ, ascending."""

    prompts: Tensor
    rollouts: Tensor

    @classmethod
    def of(cls, prompts: Tensor, rollouts: Tensor | int) -> "Request":
        """Ids may repeat: their rollouts are added. Prompts without rollouts are left out."""
        wanted = torch.as_tensor(rollouts, dtype=torch.int64).expand(len(prompts))
        ids, where = torch.unique(prompts.long(), return_inverse=True)
        total = torch.zeros(len(ids), dtype=torch.int64).index_add(0, where, wanted)
        return cls(ids[total > 0], total[total > 0])

    @property
    def total(self) -> int:
        return int(self.rollouts.sum())

    def each(self) -> Tensor:
        """int64 [total]: the prompt of every rollout."""
        return self.prompts.repeat_interleave(self.rollouts)


@dataclass(frozen=True)
class Outcome:
    """What rollouts earned: `prompts` int64 [R] and `rewards` float [R] of every rollout; `signals`
    [R, ...] holds what else was measured of them, by name ("penalty", "length")."""

    prompts: Tensor
    rewards: Tensor
    signals: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("rewards", self.rewards), *self.signals.items()):
            if len(value) != len(self.prompts):
                raise ValueError(
                    f"{name} has {len(value)} rows for {len(self.prompts)} rollouts; give one each"
                )

    def joined(self, more: "Outcome") -> "Outcome":
        """Both, `more` behind; signals that one of them lacks are left out."""
        signals = {
            name: torch.cat([self.signals[name], more.signals[name]])
            for name in self.signals
            if name in more.signals
        }
        return Outcome(
            torch.cat([self.prompts, more.prompts]),
            torch.cat([self.rewards, more.rewards]),
            signals,
        )

    def signal(self, name: str) -> Tensor:
        if name not in self.signals:
            raise ConfigError(
                f"the outcome has no signal {name!r} but {sorted(self.signals)}; measure it for "
                "every rollout, or take another scheduler"
            )
        return self.signals[name]


class Scheduler(ABC):
    """One round is one version of the policy: `request` gives the first rollouts, `more` further
    ones until it returns None, `keep` those that are trained on, and `observe` takes in the round.
    A round has at most `budget` rollouts; `group` is the usual number for a prompt.

    Between rounds `state_dict` is all there is to know: with it a scheduler that was made alike
    asks for the same rollouts, given the same generator. Raises `ConfigError` for settings that
    cannot work.
    """

    beliefs: ClassVar[tuple[str, ...]] = ()  # attributes that change from round to round
    varying: ClassVar[tuple[str, ...]] = ()  # those of them whose length changes, too
    of_all: ClassVar[bool] = False  # whether statistics are of all rollouts, kept or not
    reads: ClassVar[tuple[str, ...]] = ()  # signals of outcomes beside "length"
    fulfils: ClassVar[tuple[Requirement, ...]] = ()  # of recipes
    acts: float | None = None  # how much its mechanism did in the latest round; None: not told
    rate_scale: float = 1.0  # factor of the trainer's learning rate

    def __init__(self, pool: Pool, budget: int, group: int) -> None:
        if group < 1 or budget < group:
            raise ConfigError(
                f"budget {budget}, group {group}; a round needs at least one group of at least one "
                "rollout: raise the budget or lower the group"
            )
        self.pool, self.budget, self.group = pool, budget, group
        self.rounds = 0

    @property
    def places(self) -> int:
        """Whole groups in a round."""
        return self.budget // self.group

    @property
    def longest_turn(self) -> int | None:
        """Tokens of a turn in this round at most; None: as ever."""
        return None

    @property
    def fresh_share(self) -> float | None:
        """The share of a round that is rolled out anew, where the trainer is to fill it up from its
        latest groups; None: it is not."""
        return None

    def longest_episodes(self, prompts: Tensor, limit: int) -> Tensor | None:
        """int64 [P]: how long an episode of each of `prompts` [P] may be in this round, at most
        `limit`; None: as long as ever."""
        return None

    def failed(self, outcome: Outcome) -> Tensor:
        """int64 [P]: the prompts for which the trainer is to put an earlier success in the place of
        a rollout, where it has one."""
        return torch.zeros(0, dtype=torch.int64)

    def priors(self) -> Tensor | None:
        """float64 [N]: what prompts were thought to be worth before the round, where a recipe's
        baseline is to use that; None: it is not told."""
        return None

    @abstractmethod
    def request(self, generator: torch.Generator) -> Request:
        """The first rollouts of a round."""

    def more(self, so_far: Outcome, generator: torch.Generator) -> Request | None:
        """Further rollouts by the same policy, given all of this round; None: it is enough."""
        return None

    def keep(self, outcome: Outcome, generator: torch.Generator) -> Tensor:
        """bool [R]: which rollouts of the round are trained on."""
        return torch.ones(len(outcome.prompts), dtype=torch.bool)

    def observe(self, outcome: Outcome, generator: torch.Generator) -> None:
        """The end of a round with all its rollouts, kept or not."""
        self.rounds += 1

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers."""
        state: dict[str, Any] = {"rounds": self.rounds}
        for name in self.beliefs:
            value = getattr(self, name)
            value = value.state_dict() if hasattr(value, "state_dict") else value
            state[name] = copy.deepcopy(value)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises `CheckpointError` if `state` is that of another scheduler or pool."""
        if set(state) != {"rounds", *self.beliefs}:
            raise CheckpointError(
                f"the state has {sorted(state)}, {type(self).__name__} has "
                f"{sorted(('rounds', *self.beliefs))}; load the state of the same scheduler"
            )
        for name in self.beliefs:
            own, value = getattr(self, name), copy.deepcopy(state[name])
            if hasattr(own, "load_state_dict"):
                own.load_state_dict(value)
                continue
            sized = isinstance(own, Tensor) and own.ndim > 0 and len(own) == self.pool.size
            if sized and name not in self.varying and own.shape != value.shape:
                raise CheckpointError(
                    f"{name} of the state has shape {tuple(value.shape)}, here "
                    f"{tuple(own.shape)}; load it into a scheduler of the same pool"
                )
            setattr(self, name, value)
        self.rounds = int(state["rounds"])


def gather(
    scheduler: Scheduler, roll: Callable[[Request], Outcome], generator: torch.Generator
) -> Outcome:
    """All rollouts of one round; `roll` answers a request with one outcome for every rollout in it.
    Raises `RuntimeError` where a scheduler asks for more than its budget."""
    wanted: Request | None = scheduler.request(generator)
    outcome: Outcome | None = None
    while wanted is not None and wanted.total > 0:
        spent = 0 if outcome is None else len(outcome.prompts)
        if spent + wanted.total > scheduler.budget:
            raise RuntimeError(
                f"{type(scheduler).__name__} asked for {spent + wanted.total} rollouts, its budget "
                f"is {scheduler.budget}"
            )
        new = roll(wanted)
        outcome = new if outcome is None else outcome.joined(new)
        wanted = scheduler.more(outcome, generator)
    if outcome is None:
        raise RuntimeError(f"{type(scheduler).__name__} asked for no rollout at all")
    return outcome
