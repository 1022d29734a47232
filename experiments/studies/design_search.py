"""A search over the design choices of offline model-based learning, by one of Optuna's samplers."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cli.search import Search
from experiments.reports import figures
from experiments.studies import Outcome

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "algorithm": "mopo",
    "data": "pendulum/medium-replay",
    "space": "design-choices",  # in experiments/spaces; None: `hyperparameter` alone
    "hyperparameter": [],  # NAME=RANGE, over those of the space
    "sampler": "tpe",
    "trials": 16,
    "steps": 2500,  # updates of a trial
    "fqe_steps": 1000,  # of each fitted Q evaluation, which is the objective
}


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Search by the offline objective, the value by fitted Q evaluation of the policy that it
    chooses of a trial's; the task has no part in it.

    `found` is the highest objective, `chosen` the score in the task of the trial that has it,
    `hindsight` the highest score of a trial, `mean` that of all trials, `correlation` the rank
    correlation of objective and score over trials.
    """
    from scipy import stats

    out = folder / "search"
    Search(
        settings["algorithm"],
        settings["data"],
        tuple(settings["hyperparameter"]),
        space=settings["space"],
        trials=settings["trials"],
        seeds=(seed,),
        steps=settings["steps"],
        fqe_steps=settings["fqe_steps"],
        sampler=settings["sampler"],
        sampler_seed=seed,
        out=out,
        workers=1,
    ).main()
    with (out / "trials.csv").open() as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["trial"]))
    objective = np.array([float(row["fqe"]) for row in rows])
    score = np.array([float(row["score_in_task"]) for row in rows])
    values = {
        "found": float(objective.max()),
        "chosen": float(score[objective.argmax()]),
        "hindsight": float(score.max()),
        "mean": float(score.mean()),
        "correlation": float(stats.spearmanr(objective, score).statistic),
    }
    curves = {
        "trial": [float(row["trial"]) + 1 for row in rows],
        "objective": objective.tolist(),
        "best": np.maximum.accumulate(objective).tolist(),
        "score": score.tolist(),
    }
    return Outcome(values, curves | choices(rows))


def choices(rows: list[dict[str, str]]) -> dict[str, list[float]]:
    """What was chosen in each trial, `choice NAME`: numbers as they are, and of each kind
    (`choice NAME=KIND`) 1 where it was chosen and 0 elsewhere. What was the same in all is left
    out. NAME is the last part of a setting's name, the whole one where two end alike."""
    known: dict[str, list[float]] = {}
    columns = rows[0].keys() - {"trial", "fqe", "score_in_task"}
    short = [column.rsplit(".", 1)[-1] for column in columns]
    for column in columns:
        tried, name = [row[column] for row in rows], column.rsplit(".", 1)[-1]
        if short.count(name) > 1:
            name = column
        if len(set(tried)) == 1:
            continue
        try:
            known[f"choice {name}"] = [float(each) for each in tried]
        except ValueError:
            for kind in sorted(set(tried)):
                known[f"choice {name}={kind}"] = [float(each == kind) for each in tried]
    return dict(sorted(known.items()))


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """The highest objective so far against trials."""
    panels = figures.by_label(rows, lambda r: r["curves"]["trial"], lambda r: r["curves"]["best"])
    path = folder / f"design-search{suffix}.png"
    figures.curves(panels, "trials", "highest objective so far", path)
    return [path]
