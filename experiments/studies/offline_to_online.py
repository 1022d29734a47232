"""From logged data into the task: the score at the switch, the dip after it, and the end."""

from pathlib import Path
from typing import Any

import numpy as np

import algorithms
from experiments.reports import figures
from experiments.runs import training as runs
from experiments.runs.study import place
from experiments.settings import CollectionSettings, RunSettings, build_config, merge, preset
from experiments.studies import Outcome, prerequisites
from mbrl import data, tasks
from mbrl.evaluation import evaluate
from mbrl.records import Evaluations

VERSION = 2
DEFAULTS = prerequisites.DEFAULTS | {
    "data": "pendulum/medium",
    "algorithm": "iql",
    "online": 10_000,  # steps in the task
    "every": 500,  # of them between evaluations
    "starts": 50,  # fixed ones of every evaluation
    "collection": {},  # how experience is gathered, over what the algorithm has
    "trained": True,  # on the logged data first; else these rows alone are there from the start
}


def needs(settings: dict[str, Any], seed: int, home: Path) -> dict[str, Path]:
    if not settings["trained"]:
        return {}
    return {"run": prerequisites.shared_run(settings, prerequisites.config(settings), seed, home)}


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Train on logged data, then go on in the task of the data; or begin there with its rows.

    Normalised scores: `switch` before the first step in the task, `lowest` at any later evaluation,
    `end` at the last, `mean` over all later ones. `depth` is what is lost at the lowest (0 where
    nothing is), `length` the number of steps in the task until the score is back at that of the
    switch after the lowest: 0 without a dip, all steps where it does not come back.
    """
    task = tasks.make_for(data.load(settings["data"]).spec)
    if settings["trained"]:
        before = place(folder, "run").resolve()
        prerequisites.agent(settings, prerequisites.config(settings), seed, before)
        agent = algorithms.load(before / "checkpoint.pt")
        begin: dict[str, Any] = {"after": str(before)}
    else:
        config = merge(preset(settings["algorithm"], task.spec.task)["config"], settings["config"])
        kind, _ = algorithms.ALGORITHMS[settings["algorithm"]]
        agent = kind(task.spec, build_config(settings["algorithm"], config), seed=seed)
        begin = {"logged": settings["data"]}
    first = float(task.spec.score(evaluate(agent, task, settings["starts"]).mean()))
    online = folder / "online"
    run = RunSettings(
        settings["algorithm"], task.spec.task, **begin, steps=settings["online"],
        seed=seed, eval_every=settings["every"], eval_episodes=settings["starts"],
        final_episodes=settings["starts"], tensorboard=False,
        collection=CollectionSettings(**settings["collection"]),
    )  # fmt: skip
    runs.ensure(run, agent.config, online)
    runs.TrainingRun(online).finish()
    known = Evaluations.load(online / "evaluations.npz")
    steps = [0.0, *(float(s - agent.step) for s in known.steps)]
    scores = [first, *(float(task.spec.score(r.mean())) for r in known.returns)]
    depth, length = dip(steps, scores)
    return Outcome(
        {
            "switch": first,
            "lowest": min(scores[1:]),
            "depth": depth,
            "length": length,
            "end": scores[-1],
            "mean": float(np.mean(scores[1:])),
        },
        {"step": steps, "score": scores},
    )


def dip(steps: list[float], scores: list[float]) -> tuple[float, float]:
    """Depth and length of the dip of `scores` at `steps`, whose first is that at the switch."""
    lowest = int(np.argmin(scores))
    if scores[lowest] >= scores[0]:
        return 0.0, 0.0
    back = [s for s, score in zip(steps, scores, strict=True) if score >= scores[0]]
    after = [s for s in back if s > steps[lowest]]
    return scores[0] - scores[lowest], after[0] if after else steps[-1]


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Score against steps in the task, a panel for each way to mix."""
    panels = figures.by_label(rows, lambda r: r["curves"]["step"], lambda r: r["curves"]["score"])
    label = "normalised score"
    if len(data := {name.partition(" ")[0] for name in panels}) == 1:
        label = f"score, {data.pop()}"
        panels = {name.partition(" ")[2]: lines for name, lines in panels.items()}
    path = folder / f"switch{suffix}.png"
    figures.curves(panels, "steps in the task", label, path, top=100)
    return [path]
