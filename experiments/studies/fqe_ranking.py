"""Ranking of policies by fitted Q evaluation: kept policies of several algorithms on one dataset,
their values from the data alone against their returns in the task."""

from pathlib import Path
from typing import Any

import numpy as np

import algorithms
from algorithms.evaluation.fqe import FQEConfig, evaluate_policies, select
from experiments.reports import figures
from experiments.runs import selection
from experiments.runs import training as runs
from experiments.settings import RunSettings, preset_config
from experiments.studies import Outcome
from mbrl import data
from mbrl.errors import ConfigError
from mbrl.records import Evaluations
from mbrl.statistics import rank_correlation

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "data": "pendulum/medium-replay",
    "algorithms": ["bc", "td3_bc", "iql", "edac", "ravl"],  # five policies of each
    "steps": 5000,  # updates of each
    "episodes": 100,  # fixed starts of every policy's evaluation
    "updates": 10_000,  # of the fitted Q evaluation
}


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Train, evaluate in the task and from the data, and correlate.

    `rank_correlation` is Spearman's with its 95 % interval; `regret` is how far the score of the
    policy chosen offline lies below that of the best one, `regret_of_last` the same for the last
    policies' mean. Discounted values are compared with undiscounted returns.
    """
    dataset = data.load(settings["data"])
    if dataset.spec.reference_returns is None:
        raise ConfigError(f"{settings['data']} has no reference returns to score policies with")
    policies: list[Any] = []
    returns: list[float] = []
    last: list[float] = []
    for name in settings["algorithms"]:
        steps, kept, by_step = _policies(name, settings, seed, folder / name)
        policies += kept
        returns += [by_step[step] for step in steps]
        last.append(returns[-1])
    config = FQEConfig(steps=settings["updates"], gamma=0.99)
    values = evaluate_policies(policies, dataset, config).values
    spearman = rank_correlation(values, np.array(returns))
    scores = np.array([dataset.spec.score(r) for r in returns])
    final = np.array([dataset.spec.score(r) for r in last])
    return Outcome(
        {
            "rank_correlation": spearman.estimate,
            "low": spearman.low,
            "high": spearman.high,
            "policies": float(len(policies)),
            "regret": float(scores.max() - scores[select(values)]),
            "regret_of_last": float(scores.max() - final.mean()),
        },
        {"fqe_value": values.tolist(), "score": scores.tolist()},
    )


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Fitted-Q value against score: a panel for each dataset, a point for each policy, a marker for
    each seed."""
    panels = {
        label: {
            f"seed {record['key']['seed']}": (
                np.array(record["curves"]["fqe_value"]),
                np.array(record["curves"]["score"]),
            )
            for record in records
        }
        for label, records in rows.items()
    }
    path = folder / f"ranking{suffix}.png"
    figures.scatter(panels, "fitted-Q value (discounted)", "normalised score", path)
    return [path]


def _policies(
    name: str, settings: dict[str, Any], seed: int, folder: Path
) -> tuple[list[int], list[Any], dict[int, float]]:
    """Steps and policies that a run kept, and the mean return by step."""
    run = RunSettings(
        name,
        settings["data"],
        steps=settings["steps"],
        seed=seed,
        eval_episodes=settings["episodes"],
        final_episodes=settings["episodes"],
        tensorboard=False,
    )
    runs.ensure(run, preset_config(name, settings["data"]), folder)
    runs.TrainingRun(folder).finish()
    agent = algorithms.load(folder / "checkpoint.pt")
    steps, policies = selection.kept_policies(folder, agent)
    evaluations = Evaluations.load(folder / "evaluations.npz")
    means = (float(r.mean()) for r in evaluations.returns)
    return steps, policies, dict(zip(evaluations.steps, means, strict=True))
