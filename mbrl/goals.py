"""Observations of tasks with goals, taken apart and put together again: what the agent sees of
itself, the goal beside it, and what of itself the goal asks for."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mbrl.errors import ConfigError
from mbrl.types import Dataset, Spec, Transitions


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


def with_last_states(dataset: Dataset) -> Dataset:
    """The rows with one more behind each episode, which stays in its last state, so that learners
    of goals have that state among their goals: GCIVL, GCIQL, HIQL, SAW and HECRL take states that
    rows leave. To be used where last states are unlike all others, as those of a table are.

    The action of such a row is the one nearest 0 that is allowed, its reward 0; the episode's flags
    move on to it. Rows whose next observation is unknown are left out, and the columns `state` and
    `behaviour_prob`, which nobody recorded there. Raises `ConfigError` for a task without goals.
    """
    spec = dataset.spec
    GoalEntries(spec)
    rows = dataset.transitions.with_known_next()
    last = _last(rows)
    rows = rows.select(torch.repeat_interleave(torch.arange(len(rows)), 1 + last.long()))
    stays = torch.zeros(len(rows), dtype=torch.bool)
    stays[torch.nonzero(last).flatten() + torch.arange(1, int(last.sum()) + 1)] = True
    before = torch.cat([stays[1:], stays.new_zeros(1)])
    mask = rows.action_mask
    if mask is not None:
        assert rows.next_action_mask is not None
        mask = torch.where(stays[:, None], rows.next_action_mask, mask)
    if spec.discrete:
        still = torch.zeros_like(rows.action) if mask is None else mask.long().argmax(1)
        action = torch.where(stays, still, rows.action)
    else:
        low, high = (
            torch.tensor(b, dtype=rows.action.dtype) for b in (spec.action_low, spec.action_high)
        )
        action = torch.where(stays[:, None], torch.zeros_like(low).clamp(low, high), rows.action)
    made = replace(
        rows,
        obs=torch.where(stays[:, None], rows.next_obs, rows.obs),
        action=action,
        reward=torch.where(stays, 0.0, rows.reward),
        terminated=rows.terminated & ~before,
        truncated=rows.truncated & ~before,
        action_mask=mask,
        state=None,
        behaviour_prob=None,
    )
    return dataset.with_transitions(made)


def _last(rows: Transitions) -> Tensor:
    """[N] bool: the last row of each episode, of one without an end flag, too."""
    last = rows.ends.clone()
    last[-1] = True
    return last


def count_unleft(rows: Transitions, entries: GoalEntries) -> int:
    """How many things achieved end several episodes and are at no row: the ends of a table's
    episodes, say, where those of numbers that hardly repeat are not counted."""
    last = _last(rows)
    ends, counts = entries.achieved_of(rows.next_obs[last]).unique(dim=0, return_counts=True)
    repeated = ends[counts > 1]
    if len(repeated) == 0:
        return 0
    both = torch.cat([repeated, entries.achieved_of(rows.obs)])
    which = both.unique(dim=0, return_inverse=True)[1]
    return int((~torch.isin(which[: len(repeated)], which[len(repeated) :])).sum())


def goal_fields(own: int, achieved: tuple[int, ...]) -> dict[str, Any]:
    """The fields of a `Spec` whose observations are `own` entries and then a goal that is compared
    with those at `achieved`."""
    size = len(achieved)
    return {"obs_dim": own + size, "goal": tuple(range(own, own + size)), "achieved": achieved}
