"""How often "better" and "worse" are right: policies of several algorithms and budgets, valued from
the data alone, against what they and the logged policy earn in the task."""

import copy
from pathlib import Path
from typing import Any

import numpy as np

from algorithms import ALGORITHMS
from algorithms.evaluation.valuation import (
    Valuation,
    ValuationConfig,
    discounted_returns,
    value_policies,
)
from algorithms.evaluation.verdict import verdict
from experiments.reports import figures
from experiments.settings import preset_config
from experiments.studies import Outcome
from mbrl import data, tasks
from mbrl.data.split import hold_out
from mbrl.errors import ConfigError, unknown_name
from mbrl.evaluation import evaluate

VERSION = 2
DEFAULTS: dict[str, Any] = {
    "data": "pendulum/medium-replay",
    "algorithms": ["bc", "td3_bc", "iql", "edac"],
    "budgets": [500, 1500, 5000],  # updates after which a policy is valued
    "holdout": 0.5,  # share of the episodes that nothing is learned from
    "valued_on": "held-out",  # or all
    "updates": 4000,  # of fitted Q evaluation
    "resamples": 10,
    "dice": 2000,  # updates of DICE; 0: none
}
GAMMA = 0.99
PARTS = ("held-out", "all")
WORDS = ("worse", "cannot tell", "better")


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """`better`, `worse`, `cannot_tell`: how often each was said; `wrong_better`, `wrong_worse`: how
    often while the task says otherwise by two standard errors, `open_better`, `open_worse` while
    the task does not decide; `covered`: share of the intervals of the difference that hold the true
    one, give or take two of its standard errors. The truth is the mean difference of the policy's
    discounted return in the task, from the start of every logged episode, to that episode's own;
    curves hold it and the estimates, a number a policy."""
    if settings["valued_on"] not in PARTS:
        raise unknown_name("part of the data", settings["valued_on"], PARTS)
    dataset = data.load(settings["data"])
    train, held = hold_out(dataset, settings["holdout"], seed)
    task = tasks.make_for(dataset.spec)
    rows = dataset.transitions
    starts = [a for a, _ in rows.episodes()]
    state, possible = task.state_from_obs(rows.obs[starts])
    if not bool(possible.all()):
        raise ConfigError(f"some starts of {settings['data']} are no states of its task")
    logged = discounted_returns(rows, GAMMA)
    policies, truth, errors = [], [], []
    for name in settings["algorithms"]:
        cls, _ = ALGORITHMS[name]
        agent = cls(dataset.spec, preset_config(name, settings["data"]), seed=seed)
        for budget in settings["budgets"]:
            agent.fit(train, budget - agent.step, callbacks=[])
            policies.append(copy.deepcopy(agent.policy))
            returns = evaluate(agent, task, len(starts), gamma=GAMMA, state=state)
            lead = returns - logged
            truth.append(float(lead.mean()))
            errors.append(float(lead.std(ddof=1) / np.sqrt(len(lead))))
    config = ValuationConfig(
        steps=settings["updates"], resamples=settings["resamples"], dice_steps=settings["dice"],
        seed=seed,
    )  # fmt: skip
    whole = dataset if settings["valued_on"] == "all" else held
    valuations = value_policies(policies, whole, config)
    return _outcome(valuations, np.array(truth), np.array(errors))


def _outcome(valuations: list[Valuation], truth: np.ndarray, errors: np.ndarray) -> Outcome:
    said = np.array([WORDS.index(verdict(v).word) - 1 for v in valuations])
    fitted = [v.estimates[0] for v in valuations]
    low, high = (
        np.array([getattr(e, f"difference_{end}") for e in fitted]) for end in ("low", "high")
    )
    better, worse = said == 1, said == -1
    values = {
        "policies": float(len(said)),
        "better": float(better.sum()),
        "wrong_better": float((better & (truth < -2 * errors)).sum()),
        "open_better": float((better & (np.abs(truth) <= 2 * errors)).sum()),
        "worse": float(worse.sum()),
        "wrong_worse": float((worse & (truth > 2 * errors)).sum()),
        "open_worse": float((worse & (np.abs(truth) <= 2 * errors)).sum()),
        "cannot_tell": float((said == 0).sum()),
        "covered": float(((low <= truth + 2 * errors) & (truth - 2 * errors <= high)).mean()),
        "truly_better": float((truth > 2 * errors).sum()),
    }
    curves = {
        "truth": truth.tolist(),
        "truth_error": errors.tolist(),
        "difference": [e.difference for e in fitted],
        "low": low.tolist(),
        "high": high.tolist(),
        "outside": [v.support.outside for v in valuations],
        "said": said.tolist(),
    }
    dice = [v.estimates[1] for v in valuations if len(v.estimates) > 1]
    if dice:
        curves["dice"] = [e.difference for e in dice]
        curves["dice_low"] = [e.difference_low for e in dice]
        curves["dice_high"] = [e.difference_high for e in dice]
        curves["dice_believed"] = [float(e.believed) for e in dice]
    return Outcome(values, curves)


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Estimated against true difference to the logged policy: a panel for each dataset, a marker
    for each verdict."""
    panels = {}
    for label, records in rows.items():
        curves = {
            name: np.concatenate([np.array(r["curves"][name]) for r in records])
            for name in ("truth", "difference", "said")
        }
        panels[label] = {
            word: (
                curves["truth"][curves["said"] == k - 1],
                curves["difference"][curves["said"] == k - 1],
            )
            for k, word in enumerate(WORDS)
        }
    path = folder / f"verdicts{suffix}.png"
    figures.scatter(panels, "true difference to the logged policy", "estimated", path)
    return [path]
