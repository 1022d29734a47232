"""Evaluation in the real task: fixed start states, all episodes side by side, every return kept."""

import numpy as np
import torch

from mbrl.errors import ConfigError
from mbrl.tasks import Task
from mbrl.training import Trainable, is_stateful

START_SEED = 20_402  # the start states of every evaluation, equal for all agents and steps


@torch.no_grad()
def evaluate(
    agent: Trainable,
    task: Task,
    episodes: int,
    *,
    seed: int = START_SEED,
    deterministic: bool = True,
    gamma: float = 1.0,
) -> np.ndarray:
    """Returns [episodes], float64, of `agent` from starts fixed by `seed`; discounted
    where `gamma` is below 1.

    The first n starts of a longer evaluation are not those of a shorter one; compare equal counts.
    """
    if episodes < 1:
        raise ConfigError(f"episodes is {episodes}, it must be at least 1")
    limit = task.spec.max_episode_steps
    if limit is None:
        raise ConfigError(f"task {task.spec.task!r} has no episode limit; give its spec one")
    starts = torch.Generator(device=task.device).manual_seed(seed)
    device = next(agent.policy.parameters()).device
    draws = torch.Generator(device=device).manual_seed(seed)
    state = task.reset(episodes, starts)
    obs = task.observe(state)
    alive = torch.arange(episodes, device=task.device)
    returns = torch.zeros(episodes, dtype=torch.float64, device=task.device)
    carried: torch.Tensor | None = None
    for t in range(limit):
        policy = agent.policy
        batch = obs.to(device, torch.float32)
        if is_stateful(policy):
            action, carried = policy.step(batch, carried, draws, deterministic=deterministic)
        else:
            action = policy(batch) if deterministic else policy.explore(batch, draws)
        step = task.step(state, action.to(task.device))
        returns[alive] += gamma**t * step.reward.double()
        if is_stateful(policy):
            assert carried is not None
            carried = policy.observe_reward(carried, step.reward.to(device, torch.float32))
        keep = ~step.terminated
        if not bool(keep.all()):
            alive, state, obs = alive[keep], step.state[keep], step.obs[keep]
            carried = None if carried is None else carried[keep.to(carried.device)]
            if len(alive) == 0:
                break
        else:
            state, obs = step.state, step.obs
    result: np.ndarray = returns.cpu().numpy()
    return result
