"""Policies of several modes: the score of a run on logged data, of its greedy and of its sampled
actions, how its samples divide among the modes, and what an action costs."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.reports import figures
from experiments.studies import Outcome, prerequisites
from mbrl import data, tasks
from mbrl.evaluation import evaluate
from mbrl.records import Evaluations
from mbrl.tasks.modes import START, WIDTH, Modes, Obstacle

VERSION = 1
DEFAULTS = prerequisites.DEFAULTS | {"data": "modes/expert", "algorithm": "bc"}
ANGLES, DRAWS = 16, 100  # observations at which samples are sorted by mode, and samples at each
ROWS = 256  # logged observations at which passes of a network are counted


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Train on logged data, then act in the task of the data.

    Normalised scores of the last weights: `score` of greedy actions, `sampled` of sampled ones,
    from the same starts. `entropy` of the shares of sampled ways among the task's modes, over its
    logarithm's greatest value: 1 is an even division, 0 one way alone (NaN where the task has no
    known modes, or no sample is at one); `astray` the share of samples that are at none.
    `evaluations` are passes of a network for a greedy action, on average.
    """
    run = folder / "run"
    agent = prerequisites.agent(settings, prerequisites.config(settings), seed, run)
    dataset = data.load(settings["data"])
    task = tasks.make_for(dataset.spec)
    known = Evaluations.load(run / "evaluations.npz")
    scores = [float(task.spec.score(r.mean())) for r in known.returns]
    sampled = evaluate(agent, task, settings["episodes"], deterministic=False)
    entropy, astray = division(ways(agent.policy, task))
    return Outcome(
        {
            "score": scores[-1],
            "sampled": float(task.spec.score(sampled.mean())),
            "entropy": entropy,
            "astray": astray,
            "evaluations": evaluations(agent.policy, dataset.transitions.obs[:ROWS]),
        },
        {"step": [float(s) for s in known.steps], "score": scores},
    )


@torch.no_grad()
def evaluations(policy: Any, obs: Tensor) -> float:
    """Mean passes of a network for the greedy action at `obs` [B, S]; 1 for a policy that does not
    say."""
    count = getattr(policy, "evaluations", None)
    return 1.0 if count is None else float(count(obs).mean())


@torch.no_grad()
def ways(policy: Any, task: Any) -> Tensor | None:
    """The mode that each sample goes to, [contexts, draws] int64, -1 for none; None where the task
    has no known modes."""
    generator = torch.Generator().manual_seed(0)
    if isinstance(task, Modes):
        return ways_to_goals(policy, task, generator)
    return ways_round(policy, task, generator) if isinstance(task, Obstacle) else None


def ways_to_goals(policy: Any, task: Modes, generator: torch.Generator) -> Tensor:
    """The goal within two widths of each sampled action, at evenly spread angles."""
    angle = torch.arange(ANGLES).repeat_interleave(DRAWS) * 2 * math.pi / ANGLES
    state = torch.stack([angle.cos(), angle.sin()], 1)
    action = policy.explore(task.observe(state), generator)
    distance, nearest = (action[:, None] - task.goals(state)).norm(dim=-1).min(1)
    return torch.where(distance <= 2 * WIDTH, nearest, -1).view(ANGLES, DRAWS)


def ways_round(policy: Any, task: Obstacle, generator: torch.Generator) -> Tensor:
    """The side, 1 above and 0 below, on which sampled episodes from the middle get past the
    obstacle."""
    count = ANGLES * DRAWS
    state = torch.tensor([START]).expand(count, -1)
    side, alive = torch.full((count,), -1), torch.ones(count, dtype=torch.bool)
    for _ in range(task.spec.max_episode_steps or 0):
        step = task.step(state, policy.explore(task.observe(state), generator))
        # A move may get past and arrive; one that touches the obstacle ends before it.
        passed = alive & (step.state[:, 0] > 0) & ~(step.terminated & (step.reward == 0))
        side = torch.where(passed & (side < 0), (step.state[:, 1] > 0).long(), side)
        alive &= ~step.terminated
        state = torch.where(alive[:, None], step.state, state)
    return side[None]


def division(way: Tensor | None) -> tuple[float, float]:
    """Normalised entropy of the shares of two modes in `way` [contexts, draws], a mean over the
    contexts that have a sample at one, and the share of samples at none. NaN for None."""
    if way is None:
        return math.nan, math.nan
    entropies = []
    for row in way:
        counts = np.array([float((row == mode).sum()) for mode in (0, 1)])
        if counts.sum() > 0:
            share = counts[counts > 0] / counts.sum()
            entropies.append(float(-(share * np.log2(share)).sum()))
    mean = float(np.mean(entropies)) if entropies else math.nan
    return abs(mean), float((way < 0).float().mean())


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Score of greedy actions against updates."""
    scores = figures.by_label(rows, lambda r: r["curves"]["step"], lambda r: r["curves"]["score"])
    path = folder / f"scores{suffix}.png"
    figures.curves(scores, "updates", "normalised score", path, top=100)
    return [path]
