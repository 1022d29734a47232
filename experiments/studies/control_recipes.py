"""Policy gradients of one recipe or another in a control task, at one budget."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments import figures
from experiments.settings import merge
from experiments.studies import Outcome, learned
from mbrl import statistics
from mbrl.records import Evaluations

VERSION = 1
DEFAULTS = learned.DEFAULTS | {
    "algorithm": "policy_gradient",  # or props
    "recipe": "grpo",
    "task": "CartPole-v1",
    "steps": 4000,  # of each of the 16 copies
}


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Train by acting. `return` is the mean return of the greedy policy from fixed starts after the
    last step, `score` the same normalised, `best` the best score that was seen on the way (never
    reported as the result)."""
    described = settings | {
        "data": settings["task"],
        "config": merge(settings["config"], {"recipe": settings["recipe"]}),
    }
    run = folder / "run"
    agent = learned.agent(described, learned.config(described), seed, run)
    evaluations = Evaluations.load(run / "evaluations.npz")
    returns = [float(r.mean()) for r in evaluations.returns]
    scores = [float(agent.spec.score(r)) for r in returns]
    return Outcome(
        {"return": returns[-1], "score": scores[-1], "best": max(scores)},
        {"step": [float(s) for s in evaluations.steps], "score": scores},
    )


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, mark: str) -> list[Path]:
    """Last scores of all recipes with intervals, best first."""
    names = {label: label.split(", ")[-1] for label in rows}
    if len(set(names.values())) < len(names):  # of several tasks
        names = {label: label for label in rows}
    scores = {
        names[label]: np.array([r["values"]["score"] for r in records])
        for label, records in rows.items()
        if records
    }
    found = {name: statistics.confidence_interval(s, statistics.iqm) for name, s in scores.items()}
    found = dict(sorted(found.items(), key=lambda item: -item[1].estimate))
    path = folder / f"scores{mark}.png"
    figures.intervals({"normalised score, interquartile mean": found}, path)
    return [path]
