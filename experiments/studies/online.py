"""An algorithm that learns in a task from nothing: its score against the steps that it took."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments.reports import figures
from experiments.runs import training as runs
from experiments.settings import CollectionSettings, RunSettings, build_config, merge, preset
from experiments.studies import Outcome
from mbrl import tasks
from mbrl.records import Evaluations

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "task": "Pendulum-v1",
    "algorithm": "sac",
    "config": {},  # settings over the preset's
    "collection": {},  # how experience is gathered, over what the algorithm has
    "steps": 3000,
    "every": 250,  # of them between evaluations
    "starts": 20,  # fixed ones of every evaluation
    "level": 80.0,  # score whose first step is reported
}


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Learn for `steps` steps of the task.

    Normalised scores of greedy actions: `quarter`, `half` and `end` at the last evaluation within
    so much of the steps, `mean` over all. `reached`: steps until the score was first at `level`, or
    all of them where it never was.
    """
    name, task = settings["algorithm"], settings["task"]
    run = RunSettings(
        name, task, steps=settings["steps"], seed=seed, eval_every=settings["every"],
        eval_episodes=settings["starts"], final_episodes=settings["starts"], tensorboard=False,
        collection=CollectionSettings(**settings["collection"]),
    )  # fmt: skip
    config = build_config(name, merge(preset(name, task)["config"], settings["config"]))
    runs.ensure(run, config, folder / "run")
    runs.TrainingRun(folder / "run").finish()
    known = Evaluations.load(folder / "run" / "evaluations.npz")
    spec = tasks.make(task).spec
    steps = [float(s) for s in known.steps]
    scores = [float(spec.score(r.mean())) for r in known.returns]
    return Outcome(summary(steps, scores, settings["level"]), {"step": steps, "score": scores})


def summary(steps: list[float], scores: list[float], level: float) -> dict[str, float]:
    """The numbers of a curve of `scores` at `steps`."""
    values = {
        name: scores[max(k for k, s in enumerate(steps) if s <= max(share * steps[-1], steps[0]))]
        for name, share in (("quarter", 0.25), ("half", 0.5), ("end", 1.0))
    }
    reached = [s for s, score in zip(steps, scores, strict=True) if score >= level]
    return values | {
        "mean": float(np.mean(scores)),
        "reached": reached[0] if reached else steps[-1],
    }


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Score against steps in the task."""
    panels = figures.by_label(rows, lambda r: r["curves"]["step"], lambda r: r["curves"]["score"])
    path = folder / f"online{suffix}.png"
    figures.curves(panels, "steps in the task", "normalised score", path, top=100)
    return [path]
