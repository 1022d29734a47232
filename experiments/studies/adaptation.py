"""Adaptation to other tasks by memory: agents trained on one dataset, evaluated in tasks with a
different gravity, mass or length."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments.reports import figures
from experiments.runs.study import place
from experiments.studies import Outcome, prerequisites
from experiments.studies.horizons import OFTEN
from mbrl import data, tasks
from mbrl.evaluation import evaluate

VERSION = 4
DEFAULTS = prerequisites.DEFAULTS | {
    "data": "swingup/medium-replay",
    "algorithm": "neubay",
    "option": "half_length",  # of the task
    "values": [0.25, 0.35, 0.5, 0.7, 1.0],  # that the agent is evaluated at
    "starts": 50,  # fixed ones, at each
}


def needs(settings: dict[str, Any], seed: int, home: Path) -> dict[str, Path]:
    return {
        "run": prerequisites.shared_run(settings, prerequisites.config(settings), seed, home, OFTEN)
    }


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Train on the data as they are, then evaluate at every value of the option.

    `logged` is the score at the value nearest the task's own, the middle one of the list; `others`
    the mean score over the other values, `worst` the least of them. Scores are normalised as in the
    task of the data."""
    run = place(folder, "run")
    agent = prerequisites.agent(settings, prerequisites.config(settings), seed, run, OFTEN)
    spec = data.load(settings["data"]).spec
    scores = []
    for value in settings["values"]:
        task = tasks.make(spec.task, **{settings["option"]: value})
        scores.append(float(spec.score(evaluate(agent, task, settings["starts"]).mean())))
    middle = len(scores) // 2
    others = [s for i, s in enumerate(scores) if i != middle]
    return Outcome(
        {"logged": scores[middle], "others": float(np.mean(others)), "worst": min(others)},
        {"value": [float(v) for v in settings["values"]], "score": scores},
    )


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Score against the task's option."""
    panels = figures.by_label(rows, lambda r: r["curves"]["value"], lambda r: r["curves"]["score"])
    path = folder / f"adaptation{suffix}.png"
    figures.curves(panels, "value of the option", "normalised score", path, top=100)
    return [path]
