"""Contrast in the batches of a run: how much they say of other actions than the policy's, and
whether the critics know which way an action should move."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from experiments.reports import figures
from experiments.studies import Outcome, prerequisites
from mbrl import data, tasks
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.networks import ensemble_values
from mbrl.records import Evaluations
from mbrl.tasks import Task

VERSION = 1
DEFAULTS = prerequisites.DEFAULTS | {"data": "pendulum/medium-replay", "algorithm": "ravl"}
BATCHES = 40  # batches that are looked at together
NEIGHBOURS = 20  # rows of like states
STATES = 500  # states whose neighbours, and whose actions' values, are looked at
OTHER = 0.5  # of an action dimension's half range: from here on it is another action
STEP = 0.25  # that an action is moved to either side, in half ranges


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Train, then look at batches and critics after the last update.

    `spread` is the standard deviation of the actions (in half ranges) of the 20 rows of a batch
    whose states are nearest, in standard deviations of the data, mean over states and dimensions;
    `other` the share of rows with an action more than half a half range from the policy's greedy
    one; `gradient` the mean length of the action gradient of the critics' minimum at data states;
    `slope` Spearman's correlation, over these states, of what the critics and what the task say is
    gained by moving the greedy action by a quarter of a half range each way (`gains`).
    """
    run, dataset = folder / "run", data.load(settings["data"])
    agent: Agent[Batch] = prerequisites.agent(settings, prerequisites.config(settings), seed, run)
    agent.prepare(dataset, lambda metrics: None)
    generator = torch.Generator().manual_seed(0)
    batches = [agent.source.sample(generator) for _ in range(BATCHES)]
    obs = torch.cat([b.obs for b in batches])
    action = torch.cat([b.action for b in batches])
    order = torch.randperm(len(dataset), generator=generator)[:STATES]
    states = dataset.transitions.obs[order]
    scale = dataset.transitions.obs.std(0).clamp_min(1e-6)
    claimed, gained = gains(agent, tasks.make_for(dataset.spec), states, generator)
    evaluations = Evaluations.load(run / "evaluations.npz")
    scores = [float(dataset.spec.score(r.mean())) for r in evaluations.returns]
    return Outcome(
        {
            "score": scores[-1],
            "spread": local_spread(obs / scale, action, generator),
            "other": float(_distance(agent, obs, action).gt(OTHER).double().mean()),
            "gradient": action_gradient(agent, states),
            "slope": float(stats.spearmanr(claimed, gained)[0]),
        },
        {"step": [float(s) for s in evaluations.steps], "score": scores},
    )


def local_spread(obs: Tensor, action: Tensor, generator: torch.Generator) -> float:
    """Standard deviation of the actions [M, A] of the `NEIGHBOURS` rows nearest to a row in `obs`
    [M, S], itself among them; mean over `STATES` rows and all dimensions."""
    rows = torch.randperm(len(obs), generator=generator)[:STATES]
    near = torch.cdist(obs[rows], obs).topk(NEIGHBOURS, largest=False).indices
    return float(action[near].std(1, correction=0).mean())


def _greedy(agent: Any, obs: Tensor) -> Tensor:
    """The present policy's greedy actions [B, A] in half ranges."""
    actor = agent.learner.actor
    with torch.no_grad():
        unit: Tensor = actor.scale.to_unit(actor(obs))
    return unit


def _distance(agent: Any, obs: Tensor, action: Tensor) -> Tensor:
    """Largest difference [B] of a dimension of `action` [B, A] from the policy's greedy one."""
    return (action - _greedy(agent, obs)).abs().amax(-1)


def action_gradient(agent: Any, obs: Tensor) -> float:
    """Mean length of d min_n Q_n / d action at the policy's greedy actions at `obs` [B, S]."""
    action = _greedy(agent, obs).requires_grad_()
    q = ensemble_values(agent.learner.critic, torch.cat([obs, action], -1))[0].min(0).values
    (slope,) = torch.autograd.grad(q.sum(), action)
    return float(slope.norm(dim=-1).mean())


@torch.no_grad()
def gains(
    agent: Any, task: Task, obs: Tensor, generator: torch.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """What is gained by an action `STEP` further along a random direction than by one `STEP` back,
    from the greedy one at `obs` [B, S]: by the critics' minimum, and by the discounted return in
    the task of the policy, greedy from the next step on, to the end of an episode."""
    state, valid = task.state_from_obs(obs)
    centre = _greedy(agent, obs)
    way = torch.randn(centre.shape, generator=generator)
    way = STEP * way / way.norm(dim=-1, keepdim=True)
    ends = [(centre + sign * way).clamp(-1, 1) for sign in (1, -1)]
    q = [
        ensemble_values(agent.learner.critic, torch.cat([obs, a], -1))[0].min(0).values
        for a in ends
    ]
    actor = agent.learner.actor
    earned = [
        _discounted(agent, task, state, actor.scale.to_task(a), agent.config.gamma) for a in ends
    ]
    claimed, gained = q[0] - q[1], earned[0] - earned[1]
    return claimed[valid].numpy(), gained[valid].numpy()


def _discounted(agent: Any, task: Task, state: Tensor, action: Tensor, gamma: float) -> Tensor:
    """Discounted return [B] in the task of `action` [B, A] at `state`, then of greedy actions."""
    total, weight = torch.zeros(len(action), dtype=torch.float64), torch.ones(len(action))
    for _ in range(task.spec.max_episode_steps or 0):
        step = task.step(state, action)
        total += (weight * step.reward).double()
        weight = weight * gamma * (~step.terminated).float()
        state, action = step.state, agent.learner.actor(step.obs.float())
    return total


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Score against updates."""
    curves = figures.by_label(rows, figures.column("step"), figures.column("score"))
    file = folder / f"scores{suffix}.png"
    figures.curves(curves, "updates", "normalised score", file, top=100)
    return [file]
