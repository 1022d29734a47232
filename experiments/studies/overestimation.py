"""Overestimation of a model-based run, and whether the detector reports it: a training run on a
dataset, its values against the return of its policy in the task, and where its rollouts end."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from algorithms.evaluation import diagnosis
from experiments.reports import figures
from experiments.runs import history
from experiments.settings import merge
from experiments.studies import Outcome, prerequisites
from mbrl import data, tasks
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.errors import ConfigError
from mbrl.records import Evaluations
from mbrl.types import Dataset
from world_models import RolloutConfig, TrueDynamics, rollout

VERSION = 1
DEFAULTS = prerequisites.DEFAULTS | {"data": "pendulum/expert", "algorithm": "ravl"}
DIAGNOSES = 20  # diagnoses of a run, as its refreshes allow
STATES = 500  # data states whose value is compared, and starts of rollouts that are looked at
QUARTER = 0.25  # of the value range: an excess beyond it is a blow-up
FALL = 0.25  # of what was gained: a return that lost as much has fallen


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Train, then compare in the task.

    `q` is the mean value at data states after the last update, `earned` the mean discounted return
    of the policy from there in the real task, both with the entropy bonus of the critic's target
    (as much of it as values remember: `diagnosis.remembered`);
    `excess` their difference over the value range, `blew_up` whether it is above a quarter;
    `alarm` the update since which the detector's alarm, which sees the model and not the task,
    stands at the end (NaN: it does not),
    `lead` by how many updates it came before the return fell (NaN where one of them is missing);
    `outside` the share of rollouts that end outside; `pearson` and `spearman` the correlation of
    MOPO's penalty with the critics' spread on the last policy's rollouts (NaN without a model).
    """
    run, dataset = folder / "run", data.load(settings["data"])
    agent: Agent[Batch] = prerequisites.agent(settings, _config(settings), seed, run)
    values = _in_the_task(agent, dataset) | _correlations(agent, dataset)
    evaluations = Evaluations.load(run / "evaluations.npz")
    returns = [float(r.mean()) for r in evaluations.returns]
    seen = history.diagnoses(run)
    verdict = diagnosis.verdict(seen)
    alarm = math.nan if verdict.since is None else float(verdict.since)
    values |= {
        "score": float(dataset.spec.score(returns[-1])),
        "alarm": alarm,
        "lead": fell(evaluations.steps, returns) - alarm,
        "outside": seen[-1]["reach/outside"],
    }
    return Outcome(
        values,
        {
            "step": [float(s) for s in evaluations.steps],
            "score": [float(dataset.spec.score(r)) for r in returns],
            "at": [row["value/at"] for row in seen],
            "q": [row["value/q"] for row in seen],
            "monte_carlo": [row["value/monte_carlo"] for row in seen],
            "excess": [row["value/excess"] for row in seen],
        },
    )


def _config(settings: dict[str, Any]) -> Any:
    if not hasattr(prerequisites.config(settings), "imagination"):
        name = settings["algorithm"]
        raise ConfigError(f"algorithm is {name!r}; the study needs one that imagines, such as ravl")
    often = {"imagination": {"diagnose": max(1, settings["steps"] // DIAGNOSES)}}
    return prerequisites.config(settings | {"config": merge(often, settings["config"])})


def fell(steps: list[int], returns: list[float]) -> float:
    """The step of the first evaluation that lost `FALL` of what the best one before it had gained
    over the first; NaN if there is none."""
    best = returns[0]
    for step, value in zip(steps, returns, strict=True):
        best = max(best, value)
        if best > returns[0] and value < best - FALL * (best - returns[0]):
            return float(step)
    return math.nan


def _in_the_task(agent: Agent[Batch], dataset: Dataset) -> dict[str, float]:
    truth = TrueDynamics(tasks.make_for(dataset.spec))
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(dataset), generator=generator)
    obs = dataset.transitions.obs[order]
    _, valid = truth.task.state_from_obs(obs)
    reward = dataset.transitions.reward
    metrics = diagnosis.value_metrics(
        agent.learner,
        truth,
        obs[valid][:STATES],
        (reward.min(), reward.max()),
        agent.learner.remembered,
        generator,
        clip_rewards=False,
    )
    excess = float(metrics["value/excess"])
    return {
        "q": float(metrics["value/q"]),
        "earned": float(metrics["value/monte_carlo"]),
        "excess": excess,
        "blew_up": float(excess > QUARTER),
    }


def _correlations(agent: Agent[Batch], dataset: Dataset) -> dict[str, float]:
    if agent.learned is None:
        return {"pearson": math.nan, "spearman": math.nan}
    generator = torch.Generator().manual_seed(1)
    order = torch.randperm(len(dataset), generator=generator)[:STATES]
    starts, horizon = dataset.transitions.obs[order], agent.config.imagination.rollout.horizon
    config = RolloutConfig(horizon=horizon)
    imagined = rollout(agent.learned, agent.policy.explore, starts, config, generator)
    obs, action = imagined.obs[imagined.mask], imagined.action[imagined.mask]
    penalty = agent.learned.disagreement(obs, action, "max_aleatoric").numpy()
    spread = diagnosis.values(agent.learner, obs, action).std(0, correction=0).numpy()
    return {
        "pearson": float(stats.pearsonr(penalty, spread)[0]),
        "spearman": float(stats.spearmanr(penalty, spread)[0]),
    }


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Score, and value less return of the policy in the model, against updates; and the last score
    against a hyperparameter where all labels end in its values."""
    scores = figures.by_label(rows, lambda r: r["curves"]["step"], lambda r: r["curves"]["score"])
    gaps = figures.by_label(rows, lambda r: r["curves"]["at"], _gap)
    by_value: dict[str, dict[float, list[float]]] = {}
    for label, records in rows.items():
        panel, line = label.split(", ", 1)
        if " = " in line:
            name, value = line.rsplit(" = ", 1)
            last = [r["values"]["score"] for r in records]
            by_value.setdefault(f"{panel}, {name}", {})[float(value)] = last
    files = [folder / f"scores{suffix}.png", folder / f"gaps{suffix}.png"]
    figures.curves(scores, "updates", "normalised score", files[0], top=100)
    figures.curves(gaps, "updates", "value less what is earned", files[1])
    if len(by_value) > 0 and all(" = " in label for label in rows):
        lines = {name.rsplit(" ", 1)[0]: figures.pointwise(at) for name, at in by_value.items()}
        files.append(folder / f"knob{suffix}.png")
        name = next(iter(by_value)).rsplit(" ", 1)[1]
        figures.against_hyperparameter(lines, name, files[-1], "normalised score")
    return files


def _gap(record: dict[str, Any]) -> np.ndarray:
    curves = record["curves"]
    gap: np.ndarray = np.subtract(curves["q"], curves["monte_carlo"])
    return gap
