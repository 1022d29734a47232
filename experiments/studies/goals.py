"""Learners of goals on logged data in point mazes, and with blocks to push: which goals their
policies reach, beside the scripted ways."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.reports import figures
from experiments.studies import Outcome, prerequisites
from mbrl import data, tasks
from mbrl.evaluation import START_SEED
from mbrl.tasks.experts import expert
from mbrl.tasks.point_maze import PointMaze, search
from mbrl.tasks.push_blocks import SPEED, PushBlocks
from mbrl.training import is_stateful

VERSION = 1
SHORTEST = "shortest_path"  # in the place of an algorithm: the scripted way, without noise
DEFAULTS = prerequisites.DEFAULTS | {
    "data": "pointmaze/medium-navigate",
    "algorithm": "gcbc",
    "pairs": 500,  # fixed starts and goals of the last evaluation
}
PARTS = 5  # groups of pairs by the length of the shortest path


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Train on logged data, then act greedily.

    Per cent of fixed starts and goals: `success`, whose goal is reached within the limit; `far`,
    the same of the fifth with the longest shortest paths; `path`, each success weighted by the
    length of the shortest path over that taken. For blocks, whose shortest ways nobody knows, the
    steps that pushing alone takes stand for the path: ways to the blocks are not counted. The curve
    is success against the least number of steps, a fifth of the pairs a point.
    """
    task = tasks.make_for(data.load(settings["data"]).spec)
    assert isinstance(task, PointMaze | PushBlocks)
    if settings["algorithm"] == SHORTEST:
        policy: Any = expert(task.spec.task)
    else:
        chosen = prerequisites.config(settings)
        policy = prerequisites.agent(settings, chosen, seed, folder / "run").policy
    least, taken = attempts(task, policy, settings["pairs"])
    reached = torch.isfinite(taken)
    fifths = least.argsort(stable=True).chunk(PARTS)
    success = [100 * float(reached[part].double().mean()) for part in fifths]
    values = {
        "success": 100 * float(reached.double().mean()),
        "far": success[-1],
        "path": 100 * float((least / taken.maximum(least)).mean()),
    }
    return Outcome(values, {"steps": [float(least[p].mean()) for p in fifths], "success": success})


@torch.no_grad()
def attempts(task: PointMaze | PushBlocks, policy: Any, pairs: int) -> tuple[Tensor, Tensor]:
    """Least numbers of steps [pairs] from fixed starts to their goals, and those that `policy`
    takes, infinite where it does not arrive."""
    state = task.reset(pairs, torch.Generator().manual_seed(START_SEED))
    if isinstance(task, PointMaze):
        least = search(task.maze).steps(state)
    else:
        _, blocks, goals = task.parts(state)
        least = (goals - blocks).abs().sum((1, 2)) / SPEED
    taken = torch.full_like(least, torch.inf)
    carried: Tensor | None = None
    for t in range(1, (task.spec.max_episode_steps or 0) + 1):
        obs = task.observe(state)
        if is_stateful(policy):
            action, carried = policy.step(obs, carried, None)
        else:
            action = policy(obs)
        step = task.step(state, action)
        taken = torch.where(step.terminated & torch.isinf(taken), t, taken)
        state = step.state
    return least, taken


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Success against the least number of steps: a panel a dataset, a line a learner."""
    steps, success = figures.column("steps"), figures.column("success")
    panels = figures.by_label(rows, steps, success)
    path = folder / f"success{suffix}.png"
    axis = "least number of steps to the goal"
    figures.curves(panels, axis, "goals reached, %", path, top=100)
    return [path]
