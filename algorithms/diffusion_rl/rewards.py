"""What windows of a trajectory generator are worth: the task's own rewards for their actions."""

import torch
from torch import Tensor

from mbrl.tasks.base import Task
from world_models.true_dynamics import shown
from world_models.windows import Tokens


def nearest_state(task: Task, obs: Tensor) -> tuple[Tensor, Tensor]:
    """The states [B, ...] that the task reads in observations [B, S] that it may never show (cosine
    and sine of an angle leave their circle), and whether it has them [B]."""
    return task.state_from_obs(shown(task, obs))


@torch.no_grad()
def simulated_return(tokens: Tokens, windows: Tensor, task: Task) -> Tensor:
    """[B]: the sum of the task's rewards when all actions but the last of standardised `windows`
    [B, L, F] are taken from the state of the first observation, until the task ends. What a
    window says of rewards and of later states counts for nothing, so that nothing is gained by
    impossible windows. From a first observation that the task does not have: 0."""
    obs = tokens.observations(windows)[:, 0]
    action = tokens.scale.to_task(tokens.unit_actions(windows))
    state, possible = nearest_state(task, obs)
    total, alive = torch.zeros_like(obs[:, 0]), possible.clone()
    for t in range(windows.shape[1] - 1):
        step = task.step(state, action[:, t])
        total += torch.where(alive, step.reward.to(total), torch.zeros_like(total))
        alive &= ~step.terminated
        state = step.state
    return total


def reward_at_states(tokens: Tokens, windows: Tensor, task: Task) -> Tensor:
    """[B]: the sum of the task's rewards for every action but the last of standardised `windows`
    [B, L, F], each taken from the window's own observation before it, differentiable where the
    task is. Windows whose observations do not follow from each other are not found out. Nothing is
    paid at observations that the task does not have."""
    obs = tokens.observations(windows)[:, :-1]
    action = tokens.scale.to_task(tokens.unit_actions(windows))[:, :-1]
    state, possible = nearest_state(task, obs.flatten(0, 1))
    reward = task.step(state, action.flatten(0, 1)).reward.to(obs)
    return torch.where(possible, reward, torch.zeros_like(reward)).view(len(obs), -1).sum(1)


@torch.no_grad()
def window_error(tokens: Tokens, windows: Tensor, task: Task) -> Tensor:
    """[B]: the mean square error of the next observations in standardised `windows` [B, L, F], in
    deviations of the data, when the task takes every step from the window's own observation
    before it. Steps from observations that the task does not have are left out; NaN without
    any other."""
    obs = tokens.observations(windows)
    action = tokens.scale.to_task(tokens.unit_actions(windows))[:, :-1].flatten(0, 1)
    scale = tokens.normaliser.std[: tokens.spec.obs_dim]
    state, possible = nearest_state(task, obs[:, :-1].flatten(0, 1))
    step = task.step(state, action)
    error = ((step.obs.to(obs) - obs[:, 1:].flatten(0, 1)) / scale).square().mean(-1)
    return torch.where(possible, error, torch.nan).view(len(obs), -1).nanmean(1)
