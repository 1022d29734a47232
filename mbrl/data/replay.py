"""Whether a task is the one that data was recorded in: logged steps are taken again in the task,
and what it gives is compared with what was logged."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mbrl.errors import ConfigError, DataError
from mbrl.tasks import Step, Task, as_live
from mbrl.types import Dataset, Transitions


@dataclass(frozen=True)
class Replay:
    """`reward` is the error of the reward of each row compared, [N], `obs` the largest |error| / (1
    + |value|) of an entry of its next observation, [M], without rows whose own was not recorded
    (`next_known`), `ends` how many ended here or there but not in both. `episodes` says whether
    whole episodes were replayed from their first observation alone, rather than each row from the
    state that its observation stands for; `rows` is how many the data has."""

    obs: Tensor
    reward: Tensor
    ends: int
    episodes: bool
    rows: int


@torch.no_grad()
def replay(dataset: Dataset, task: Task) -> Replay:
    """Take every logged step of `dataset` again in `task`; best made with dtype=torch.float64.

    Rows are left out where the observation does not say what state it was. Two tasks hide too much
    for that (`STARTS`): there whole episodes are replayed, from whichever possible start fits best.
    Raises `ConfigError` for other shapes and for environments that cannot be put into a state, and
    `DataError` where no row's state is known.
    """
    if as_live(task) is not None:
        raise ConfigError(f"{task.spec.task} cannot be put into the state of a logged row")
    data, spec = dataset.transitions, task.spec
    if (dataset.spec.obs_dim, dataset.spec.action_dim) != (spec.obs_dim, spec.action_dim):
        raise ConfigError(
            f"the data have {dataset.spec.obs_dim} observations and {dataset.spec.action_dim} "
            f"actions, {spec.task} has {spec.obs_dim} and {spec.action_dim}"
        )
    starts = STARTS.get(spec.task)
    return _rows(data, task) if starts is None else _episodes(data, task, starts)


def _rows(data: Transitions, task: Task) -> Replay:
    state, known = task.state_from_obs(data.obs.double())
    if not known.any():
        raise DataError(f"no observation of the data says in which state {task.spec.task} was")
    step = task.step(state[known], data.action[known])
    obs, reward, ends = _wrong(step, data, torch.nonzero(known).flatten())
    return Replay(obs[_recorded(data)[known]], reward, int(ends.sum()), False, len(data))


def _recorded(data: Transitions) -> Tensor:
    """[N] bool: the rows whose next observation was recorded."""
    return torch.ones_like(data.terminated) if data.next_known is None else data.next_known


def _wrong(step: Step, data: Transitions, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Errors of observations (0 where none was recorded) and rewards, and where ends differ, [B]
    each."""
    logged = data.next_obs[rows].double()
    obs = ((step.obs.double() - logged).abs() / (1 + logged.abs())).amax(dim=-1)
    obs = torch.where(_recorded(data)[rows], obs, 0.0)
    reward = (step.reward.double() - data.reward[rows].double()).abs()
    return obs, reward, step.terminated != data.terminated[rows]


def _episodes(data: Transitions, task: Task, starts: Callable[..., Tensor]) -> Replay:
    """All episodes side by side, each from its possible starts."""
    ranges = data.episodes()
    begins, stops = (torch.tensor(ends) for ends in zip(*ranges, strict=True))
    states = [starts(task, data.obs[a:b].double(), data.next_obs[a:b].double()) for a, b in ranges]
    state, count = torch.cat(states), len(states[0])
    begin, last = begins.repeat_interleave(count), stops.repeat_interleave(count) - 1
    errors = []
    for t in range(int((stops - begins).max())):
        rows = torch.minimum(begin + t, last)
        step = task.step(state, data.action[rows])
        errors.append(torch.stack([part.double() for part in _wrong(step, data, rows)]))
        state = step.state
    error = torch.stack(errors, dim=-1).unflatten(1, (len(ranges), count))  # [3, E, n, T]
    inside = torch.arange(error.shape[-1]) < (stops - begins)[:, None]
    best = (error[0] * inside[:, None]).amax(dim=-1).argmin(dim=-1)
    obs, reward, ends = error[:, torch.arange(len(ranges)), best][:, inside]
    return Replay(obs[_recorded(data)], reward, int(ends.sum()), True, len(data))


def _glucose_starts(task: Any, obs: Tensor, next_obs: Tensor) -> Tensor:
    """The patient that the observation shows, at every hour of the day."""
    state, _ = task.state_from_obs(obs[:1])
    starts: Tensor = task.start(state[:, 0].long().expand(24), torch.arange(24))
    return starts


def _spring_starts(task: Any, obs: Tensor, next_obs: Tensor) -> Tensor:
    """The first observation, with the targets that the episode ends with."""
    state: Tensor = task.state_from_obs(obs[:1])[0]
    state[:, 6:8] = next_obs[-1, 4:6]
    return state


STARTS: dict[str, Callable[..., Tensor]] = {
    "DMSD-v0": _spring_starts,
    "Simglucose-v0": _glucose_starts,
}
