"""Observations of tasks with goals, taken apart and put together again: what the agent sees of
itself, the goal beside it, and what of itself the goal asks for."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mbrl.errors import ConfigError
from mbrl.types import Dataset, Spec


class GoalEntries(nn.Module):
    """Where the goal of a task stands in its observations [..., S]: `goal` and `achieved` as in
    `Spec`, `own` the entries that are not of the goal. Raises `ConfigError` for a task without
    goals."""

    goal: Tensor
    achieved: Tensor
    own: Tensor

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        if not spec.goal:
            raise ConfigError(f"the spec of task {spec.task!r} has no goal")
        own = [k for k in range(spec.obs_dim) if k not in spec.goal]
        for name, entries in (("goal", spec.goal), ("achieved", spec.achieved), ("own", own)):
            self.register_buffer(name, torch.tensor(entries), persistent=False)

    def own_of(self, obs: Tensor) -> Tensor:
        """[..., S] without the goal."""
        return obs.index_select(-1, self.own)

    def goal_of(self, obs: Tensor) -> Tensor:
        """The goal [..., G]."""
        return obs.index_select(-1, self.goal)

    def achieved_of(self, obs: Tensor) -> Tensor:
        """What is achieved [..., G]: the goal that is reached there."""
        return obs.index_select(-1, self.achieved)

    def with_goal(self, obs: Tensor, goal: Tensor) -> Tensor:
        """`obs` [..., S] with `goal` [..., G] in the place of its own."""
        return obs.index_copy(obs.ndim - 1, self.goal, goal)


def with_reached_goals(dataset: Dataset, seed: int = 0) -> Dataset:
    """The rows with goals that were reached in rows drawn at random: what a learner of goals may be
    asked for, where the recorded goals may be few, or zeros. Next observations have the goal of
    their row. Raises `ConfigError` for a task without goals."""
    entries, rows = GoalEntries(dataset.spec), dataset.transitions
    generator = torch.Generator().manual_seed(seed)
    other = torch.randint(len(rows), (len(rows),), generator=generator)
    goal = entries.achieved_of(rows.obs)[other.to(rows.obs.device)]
    obs, next_obs = entries.with_goal(rows.obs, goal), entries.with_goal(rows.next_obs, goal)
    return dataset.with_transitions(replace(rows, obs=obs, next_obs=next_obs))


def goal_fields(own: int, achieved: tuple[int, ...]) -> dict[str, Any]:
    """The fields of a `Spec` whose observations are `own` entries and then a goal that is compared
    with those at `achieved`."""
    size = len(achieved)
    return {"obs_dim": own + size, "goal": tuple(range(own, own + size)), "achieved": achieved}
