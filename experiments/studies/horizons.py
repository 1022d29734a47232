"""Effect of the rollout length: a NEUBAY run on a dataset, the length of its rollouts, and its
values against the return of its policy in the task."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from algorithms.evaluation import recurrent_diagnosis
from algorithms.neubay import NEUBAY
from experiments.reports import figures
from experiments.runs import history
from experiments.runs.study import place
from experiments.studies import Outcome, prerequisites
from mbrl import data, tasks
from mbrl.errors import ConfigError
from mbrl.records import Evaluations
from world_models import TrueDynamics

VERSION = 3
DEFAULTS = prerequisites.DEFAULTS | {"data": "swingup/medium-replay", "algorithm": "neubay"}
HISTORIES = 100  # that values are compared at
OFTEN = 20  # updates between rows of the run's metrics


def needs(settings: dict[str, Any], seed: int, home: Path) -> dict[str, Path]:
    return {"run": prerequisites.shared_run(settings, chosen(settings), seed, home, OFTEN)}


def chosen(settings: dict[str, Any]) -> Any:
    if settings["algorithm"] != "neubay":
        raise ConfigError(f"algorithm is {settings['algorithm']!r}; the study needs neubay")
    return prerequisites.config(settings)


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Train, then compare at random histories of the data.

    `length` is the median length of rollouts over the last third of the run, by its metrics;
    `threshold` the disagreement that stopped them (NaN: none did); `q` the mean value at the
    histories, `earned` the mean discounted return from there in the task, `imagined` that in the
    model without a threshold, each history in one member, all with as much entropy bonus as values
    remember; `gap` is `q` less `earned`.
    """
    run, dataset = place(folder, "run"), data.load(settings["data"])
    agent: NEUBAY = prerequisites.agent(settings, chosen(settings), seed, run, OFTEN)
    agent.prepare(dataset, lambda metrics: None)
    evaluations = Evaluations.load(run / "evaluations.npz")
    scores = [float(dataset.spec.score(r.mean())) for r in evaluations.returns]
    logged = history.metrics(run)
    lengths = logged["rollout/length_median"][1]
    values = values_at_histories(agent)
    assert agent.source.levels is not None
    threshold = float(agent.source.levels[0])
    return Outcome(
        values
        | {
            "score": scores[-1],
            "length": float(np.median(lengths[-max(1, len(lengths) // 3) :])),
            "threshold": threshold if math.isfinite(threshold) else math.nan,
        },
        {"step": [float(s) for s in evaluations.steps], "score": scores},
    )


@torch.no_grad()
def values_at_histories(agent: NEUBAY) -> dict[str, float]:
    """Means over `HISTORIES` random histories of the data."""
    assert agent.source.recorded is not None
    learner, generator = agent.learner, torch.Generator().manual_seed(0)
    tape, rows = agent.source.recorded.histories(HISTORIES, generator)
    action = recurrent_diagnosis.sampled(learner, tape, generator)
    q = float(recurrent_diagnosis.values(learner, tape, action)[:, rows].mean())
    endless = torch.tensor(torch.inf)
    earned = {}
    truth = TrueDynamics(tasks.make_for(agent.spec))
    for name, model in (("earned", truth), ("imagined", agent.model)):
        imagined = recurrent_diagnosis.imagine(learner, model, tape, rows, generator)
        returns = recurrent_diagnosis.soft_return(
            imagined, (-endless, endless), agent.learner.remembered[1], agent.config.gamma
        )
        earned[name] = float(returns.mean())
    return {"q": q, **earned, "gap": q - earned["earned"]}


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Score against updates; and length, gap and score of every row."""
    panels = figures.by_label(rows, lambda r: r["curves"]["step"], lambda r: r["curves"]["score"])
    points: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for label, records in rows.items():
        panel, line = label.split(", ", 1)
        length = np.array([r["values"]["length"] for r in records])
        for name in ("gap", "score"):
            values = np.array([r["values"][name] for r in records])
            points.setdefault(f"{panel}: {name}", {})[line] = (length, values)
    files = [folder / f"horizon-scores{suffix}.png"]
    figures.curves(panels, "updates", "normalised score", files[0], top=100)
    if sum(map(len, rows.values())) > 1:  # a point alone has no beside
        files.append(folder / f"horizon-gaps{suffix}.png")
        figures.scatter(points, "median length of rollouts", "value", files[1])
    return files
