"""Policy gradients with any recipe in a control task, at the same budget."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from algorithms import PolicyGradientConfig
from experiments.reports import figures
from experiments.settings import merge
from experiments.studies import Outcome, prerequisites
from experiments.studies.stable_baselines import StableBaselines
from mbrl import statistics, tasks
from mbrl.errors import DivergenceError, optional_packages
from mbrl.evaluation import evaluate
from mbrl.records import Evaluations, MetricsFile

VERSION = 2
DEFAULTS = prerequisites.DEFAULTS | {
    "algorithm": "policy_gradient",  # or props, or stable_baselines3: its PPO in rounds alike
    "recipe": "grpo",
    "task": "CartPole-v1",
    "steps": 4000,  # of each of the 16 copies
}


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Train by acting. `return` is the mean return of the greedy policy from fixed starts after the
    last step, `score` the same normalised, both NaN for a run that diverged; `best` the best score
    during training (never reported as the result). `no_signal` is there, and 1, where all
    advantages were 0 or a signal of the recipe was constant."""
    if settings["algorithm"] == "stable_baselines3":
        return _stable_baselines3(settings, seed)
    run_settings = settings | {
        "data": settings["task"],
        "config": merge(settings["config"], {"recipe": settings["recipe"]}),
    }
    run = folder / "run"
    finished = True
    try:
        prerequisites.agent(run_settings, prerequisites.config(run_settings), seed, run)
    except DivergenceError:  # what came out of this cell, and so no reason to try it again
        finished = False
    spec, file = tasks.make(settings["task"]).spec, run / "evaluations.npz"
    evaluations = Evaluations.load(file) if file.exists() else Evaluations()
    returns = [float(r.mean()) for r in evaluations.returns]
    scores = [float(spec.score(r)) for r in returns]
    last = (returns[-1], scores[-1]) if finished else (math.nan, math.nan)
    values = {"return": last[0], "score": last[1], "best": max(scores, default=math.nan)}
    rows = MetricsFile(run / "metrics.csv").rows()
    if rows and float(rows[-1].get("rollout/no_signal") or 0):
        values["no_signal"] = 1.0
    return Outcome(
        values,
        {"step": [float(s) for s in evaluations.steps], "score": scores},
    )


def _stable_baselines3(settings: dict[str, Any], seed: int) -> Outcome:
    """PPO of stable-baselines3 with the settings of this library's: rollouts as long as the longest
    episode, as many updates after each, the same networks (its own default) and rates."""
    with optional_packages("sb3", "runs of stable-baselines3"):
        from stable_baselines3 import PPO
        from stable_baselines3.common.env_util import make_vec_env

    ours, task = PolicyGradientConfig(recipe="ppo", group=1), tasks.make(settings["task"])
    limit = task.spec.max_episode_steps
    assert limit is not None
    model = PPO(
        "MlpPolicy",
        make_vec_env(settings["task"], ours.envs, seed=seed),
        learning_rate=ours.learning_rate,
        n_steps=limit,
        batch_size=limit * ours.envs // ours.minibatches,
        n_epochs=ours.epochs,
        gamma=ours.gamma,
        max_grad_norm=ours.clip_norm,
        policy_kwargs={"net_arch": list(ours.hidden)},
        seed=seed,
        device="cpu",
    )
    model.learn(ours.envs * settings["steps"])
    peer: Any = StableBaselines(model)
    earned = float(evaluate(peer, task, settings["episodes"]).mean())
    score = float(task.spec.score(earned))
    return Outcome({"return": earned, "score": score, "best": score}, {})


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Last scores of all recipes with intervals, best first, without runs that diverged."""
    names = {label: label.split(", ")[-1] for label in rows}
    if len(set(names.values())) < len(names):  # of several tasks
        names = {label: label for label in rows}
    scores = {
        names[label]: np.array([r["values"]["score"] for r in records])
        for label, records in rows.items()
        if records
    }
    kept = {name: s[np.isfinite(s)] for name, s in scores.items()}
    intervals = {
        name: statistics.confidence_interval(s, statistics.iqm)
        for name, s in kept.items()
        if len(s)
    }
    if not intervals:
        return []
    intervals = dict(sorted(intervals.items(), key=lambda item: -item[1].estimate))
    path = folder / f"scores{suffix}.png"
    figures.intervals({"normalised score, interquartile mean": intervals}, path)
    return [path]
