"""Evaluation in the real task: fixed start states, all episodes side by side, every return kept."""

from numbers import Integral
from typing import Any

import numpy as np
import torch

from mbrl.collector import no_limit
from mbrl.errors import ConfigError
from mbrl.sb3 import SB3Agent, is_model
from mbrl.tasks import Task, as_live, as_task
from mbrl.training import chosen_action, is_stateful
from mbrl.types import Spec, require_entries

START_SEED = 20_402  # the start states of every evaluation, equal for all agents and steps


@torch.no_grad()
def evaluate(
    agent: Any,
    task: Any,
    episodes: int,
    *,
    seed: int = START_SEED,
    deterministic: bool = True,
    gamma: float = 1.0,
    state: torch.Tensor | None = None,
) -> np.ndarray:
    """Returns [episodes], float64, of `agent` from starts fixed by `seed`; discounted
    where `gamma` is below 1; from the rows of `state` [episodes, K] instead, where given.

    `agent` is one of this library (`mbrl.training.Trainable`) or a model of stable-baselines3;
    `task` a task, an id, a gymnasium environment, or a function that makes one. The first n starts
    of a longer evaluation are not those of a shorter one; compare equal counts.
    """
    if not isinstance(episodes, Integral) or episodes < 1:
        raise ConfigError(f"episodes is {episodes!r}, it must be a whole number of at least 1")
    if not 0 <= gamma <= 1:
        raise ConfigError(f"gamma is {gamma}, it must lie in [0, 1]")
    task = as_task(task)
    if task.spec.max_episode_steps is None:
        raise ConfigError(no_limit(task.spec.task))
    if state is not None and len(state) != episodes:
        raise ConfigError(
            f"state has {len(state)} rows for {episodes} episodes; give one row each to begin in"
        )
    if is_model(agent):
        agent = SB3Agent(agent, task.spec)
    if hasattr(agent, "spec"):
        require_fit(agent.spec, task.spec)
    starts = torch.Generator(device=task.device).manual_seed(seed)
    device = next(agent.policy.parameters()).device
    draws = torch.Generator(device=device).manual_seed(seed)
    parts = []
    # A task of this library takes any number of rows; of an environment each is a copy.
    environments = as_live(task)
    most = episodes if environments is None else environments.copies
    for first in range(0, episodes, most):
        count = min(most, episodes - first)
        begun = task.reset(count, starts) if state is None else state[first : first + count]
        parts.append(_returns(agent.policy, task, begun, draws, device, deterministic, gamma))
    result: np.ndarray = torch.cat(parts).cpu().numpy()
    return result


def _returns(
    policy: Any,
    task: Task,
    state: torch.Tensor,
    draws: torch.Generator,
    device: torch.device,
    deterministic: bool,
    gamma: float,
) -> torch.Tensor:
    """Returns of one episode from each row of `state`."""
    obs = task.observe(state)
    alive = torch.arange(len(state), device=task.device)
    returns = torch.zeros(len(state), dtype=torch.float64, device=task.device)
    carried: torch.Tensor | None = None
    environments = as_live(task)
    for t in range(task.spec.max_episode_steps or 0):
        batch = obs.to(device, torch.float32)
        if is_stateful(policy):
            action, carried = policy.step(batch, carried, draws, deterministic=deterministic)
        else:
            mask = None if environments is None else environments.action_mask(state)
            action = chosen_action(policy, batch, draws, deterministic=deterministic, mask=mask)
        step = task.step(state, action.to(task.device))
        returns[alive] += gamma**t * step.reward.double()
        if is_stateful(policy):
            assert carried is not None
            carried = policy.observe_reward(carried, step.reward.to(device, torch.float32))
        keep = ~step.ended
        if not bool(keep.all()):
            alive, state, obs = alive[keep], step.state[keep], step.obs[keep]
            carried = None if carried is None else carried[keep.to(carried.device)]
            if len(alive) == 0:
                break
        else:
            state, obs = step.state, step.obs
    return returns


def require_fit(mine: Spec, theirs: Spec) -> None:
    """Raise `ConfigError` where an agent does not fit a task (`require_entries`)."""
    require_entries(mine, theirs, "task", "take an agent that was built for this task")
