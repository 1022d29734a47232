"""Contextual bandit learners on the log of uniform decisions in the Open Bandit Dataset (arXiv
2008.07146; files as in `open_bandit`)."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from algorithms.bandits import BANDITS, BanditLearner, Rows, progressive, rejection
from algorithms.evaluation.bandit import evaluate
from experiments.reports import figures
from experiments.studies import Outcome
from experiments.studies.open_bandit import CAMPAIGNS, POLICIES, Log, draw_of, read
from mbrl import config as configs
from mbrl.errors import unknown_name
from mbrl.statistics import Interval

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "campaign": "men",  # all, men or women
    "behaviour": "random",  # whose log it is
    "algorithm": "squarecb",  # of algorithms.bandits, or uniform
    "config": {},
    "batch": 20,  # rows that are learned at once
}
SCALE = 1000  # clicks of a thousand rounds


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Clicks of a thousand rounds of a learner while it learns from the log, each row once, in an
    order of its seed: `dr` and `snipw` by importance weights, learning from every row, with
    `width`, half of the 95 % interval of dr; `replayed`, by rejection, where it learns from
    `accepted` rows alone. `logged` is that of the log; `uses`, the share of rounds that the weights
    amount to. (Not a bootstrap draw: a row that comes again would be known by then.)"""
    name, campaign = settings["algorithm"], settings["campaign"]
    for kind, value, known in (
        ("campaign", campaign, CAMPAIGNS),
        ("behaviour", settings["behaviour"], POLICIES),
        ("algorithm", name, ("uniform", *BANDITS)),
    ):
        if value not in known:
            raise unknown_name(kind, value, known)
    log = read(settings["behaviour"], campaign)
    order = np.random.default_rng(seed).permutation(len(log.item))
    rows = rows_of(draw_of(log, order))
    actions = len(log.items)
    learner = make(name, settings["config"], rows, actions, seed)
    estimates = progressive(learner, rows, settings["batch"])
    generator = torch.Generator().manual_seed(seed)
    taken = rejection(make(name, settings["config"], rows, actions, seed), rows, generator)
    dr, snipw = (evaluate(estimates, estimator) for estimator in ("dr", "snipw"))
    accepted = len(taken.reward)
    values = {
        "dr": SCALE * dr.value,
        "snipw": SCALE * snipw.value,
        "width": SCALE * (dr.high - dr.value),
        "uses": dr.effective_share,
        "replayed": SCALE * float(taken.reward.mean()) if accepted else float("nan"),
        "accepted": float(accepted),
        "logged": SCALE * float(rows.reward.mean()),
    }
    return Outcome({k: float(f"{v:.6g}") for k, v in values.items()}, {})


def rows_of(log: Log) -> Rows:
    """The log as rows: the context is the user's features and the place, as indicators."""
    place = np.eye(int(log.place.max()) + 1)[log.place]
    context = torch.from_numpy(np.column_stack([log.user, place])).float()
    return Rows(
        context,
        torch.from_numpy(log.item).long(),
        torch.from_numpy(log.click).float(),
        torch.from_numpy(log.probability).float(),
    )


def make(name: str, values: dict[str, Any], rows: Rows, actions: int, seed: int) -> BanditLearner:
    """The learner that the settings name; uniform is epsilon-greedy with epsilon 1."""
    if name == "uniform":
        name, values = "epsilon_greedy", {"epsilon": 1.0} | values
    cls, kind = BANDITS[name]
    learner: BanditLearner = cls(
        rows.context.shape[1], actions, configs.from_dict(kind, values), seed
    )
    return learner


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """The doubly robust value of each learner, with its interval over seeds."""
    path = folder / f"replay{suffix}.png"
    panels: dict[str, dict[str, Any]] = {}
    for label, records in rows.items():
        panel, line = label.split(", ", 1)
        curve = figures.pointwise({0.0: [r["values"]["dr"] for r in records]})
        interval = Interval(curve.mean[0], curve.low[0], curve.high[0])
        panels.setdefault(panel, {})[line] = interval
    figures.intervals(panels, path, "clicks of a thousand rounds")
    return [path]


def campaign_rows() -> list[dict[str, Any]]:
    """Learners with linear log-loss oracles on the uniform log of a campaign."""
    log = {"oracle": {"loss": "log"}}
    learners: dict[str, tuple[str, dict[str, Any]]] = {
        "uniform": ("uniform", log),
        "SquareCB": ("squarecb", log),
        "FastCB (small losses)": ("fastcb", log),
        "FastCB (small rewards)": ("fastcb", log | {"small": "reward"}),
        "epsilon-greedy": ("epsilon_greedy", log),
        "bagging": ("bagging", log),
    }
    return [
        {
            "label": f"{campaign}, {name}",
            "campaign": campaign,
            "algorithm": algorithm,
            "config": config,
        }
        for campaign in ("men",)
        for name, (algorithm, config) in learners.items()
    ]


ROWS = {"campaigns": campaign_rows}
