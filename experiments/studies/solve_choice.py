"""What `solve` chooses: the score of its policy beside those of its whole portfolio."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from algorithms import ALGORITHMS
from algorithms.evaluation.valuation import ValuationConfig
from experiments.reports import figures
from experiments.runs.solve import (
    SolveSettings,
    best,
    choose,
    portfolio,
    updates_of,
    values_for,
)
from experiments.settings import build_config, for_budget, merge, preset
from experiments.studies import Outcome
from mbrl import data, tasks
from mbrl.data.split import hold_out
from mbrl.errors import unknown_name
from mbrl.evaluation import evaluate

VERSION = 5
DEFAULTS: dict[str, Any] = {
    "data": "pendulum/medium-replay",
    "steps": 2500,  # updates of each algorithm
    "holdout": 0.2,  # share of the episodes that choose, and teach nothing
    "updates": 4000,  # of fitted Q evaluation
    "resamples": 10,
    "episodes": 100,  # of an evaluation in the task
    "portfolio": {},  # algorithms, each with config values; none: those of `solve`
    "presets": "",  # a file's name: presets as for a file of that name, not those of the data
    "ends": "rule",  # or learned: as of a log of no task, whose rule nobody knows
}

ENDS = ("rule", "learned")


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """`chosen`: the normalised score in the task of the policy that `solve` chooses from the log;
    the score of every algorithm by its name; `best`: the highest of them, which takes the task to
    find; `worst`; `regret`: best minus chosen. `fitted`: what fitted Q evaluation alone would have
    chosen among the algorithms without a world model. `believed`: policies whose value the held-out
    episodes support. Curves, one entry a policy: the leads over the log by fitted Q evaluation with
    their lower bounds; the leads over cloning in the halting model with theirs, and the share of
    windows that stay inside the log (none where no model could be fitted)."""
    if settings["ends"] not in ENDS:
        raise unknown_name("kind of ends", settings["ends"], ENDS)
    dataset = data.load(settings["data"])
    task = tasks.make_for(dataset.spec)
    if settings["ends"] == "learned":
        dataset = replace(dataset, spec=replace(dataset.spec, task="a log"))
    train, held = hold_out(dataset, settings["holdout"], seed)
    agents = {}
    presets = settings["presets"] or settings["data"]
    chosen = settings["portfolio"] or portfolio(SolveSettings(), dataset)
    for name, values in chosen.items():
        cls, _ = ALGORITHMS[name]
        updates = updates_of(name, settings["steps"])
        own = values_for(name, updates, values)
        config = build_config(name, merge(preset(name, presets)["config"], own))
        config = for_budget(name, presets, config, updates)
        agents[name] = cls(dataset.spec, config, seed=seed)
        agents[name].fit(train, updates, callbacks=[])
    config = ValuationConfig(steps=settings["updates"], resamples=settings["resamples"], seed=seed)
    choice = choose(agents, train, held, config)
    scores = {
        name: dataset.spec.score(float(evaluate(agent, task, settings["episodes"]).mean()))
        for name, agent in agents.items()
    }
    fitted = [v.estimates[0] for v in choice.valuations.values()]
    plain = {name: v for name, v in choice.valuations.items() if name != "shac"}
    top = max(scores.values())
    values = scores | {
        "chosen": scores[choice.name],
        "best": top,
        "worst": min(scores.values()),
        "regret": top - scores[choice.name],
        "fitted": scores[best(plain)] if plain else float("nan"),
        "believed": float(sum(e.believed for e in fitted)),
    }
    curves = {
        "score": list(scores.values()),
        "difference": [e.difference for e in fitted],
        "low": [e.difference_low for e in fitted],
        "believed": [float(e.believed) for e in fitted],
        "chosen": [float(name == choice.name) for name in agents],
        "halted": [choice.lead(name)[0] for name in choice.halted],
        "halted_low": [choice.lead(name)[1] for name in choice.halted],
        "inside": [own.inside for own in choice.halted.values()],
    }
    return Outcome(values, curves)


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Score against the lower bound of the lead that decided: a panel for each dataset."""
    panels = {}
    for label, records in rows.items():
        bounds = [r["curves"]["halted_low"] or r["curves"]["low"] for r in records]
        low = np.concatenate([np.array(b) for b in bounds])
        score, chosen = (
            np.concatenate([np.array(r["curves"][name]) for r in records])
            for name in ("score", "chosen")
        )
        panels[label] = {
            word: (low[chosen == k], score[chosen == k])
            for k, word in enumerate(("passed over", "chosen"))
        }
    path = folder / f"solve-choice{suffix}.png"
    figures.scatter(panels, "lower bound of the lead", "score in the task", path)
    return [path]
