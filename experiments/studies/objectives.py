"""A search of settings for a learner of several objectives, by the mean hypervolume over training
seeds, and what the settings are worth with other seeds: "Hyperparameter Optimization for
Multi-Objective Reinforcement Learning" (arXiv 2310.16487), in tasks of mo-gymnasium."""

from pathlib import Path
from typing import Any

import numpy as np

from algorithms.objectives.indicators import hypervolume, non_dominated
from algorithms.objectives.multi_weight_q import MultiWeightQ, MultiWeightQConfig
from experiments.reports import figures
from experiments.studies import Outcome
from mbrl.errors import optional_packages, unknown_name

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "task": "deep-sea-treasure-v0",
    "elsewhere": "deep-sea-treasure-concave-v0",  # where the settings are tried, too
    "sampler": "tpe",  # or random, or default: no search
    "trials": 20,
    "steps": 20_000,  # of a run
    "seeds": 3,  # of a trial
    "held_out": 10,  # seeds of the last evaluation
}
# Reference points and episodes of an evaluation, fixed for all; the returns are discounted by 0.99.
TASKS: dict[str, tuple[tuple[float, ...], int]] = {
    "deep-sea-treasure-v0": ((0.0, -50.0), 1),
    "deep-sea-treasure-concave-v0": ((0.0, -50.0), 1),
    "resource-gathering-v0": ((-1.0, -1.0, -1.0), 20),
}
SAMPLERS = ("tpe", "random", "default")


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Search, then run the best settings with held-out seeds.

    Hypervolumes in per cent of that of the exact front: `tuned`, the best trial's mean over its
    seeds; `held out`, of its settings with other seeds; `elsewhere`, in the other task; `policies`,
    how many returns of a held-out run are on its own front, on average.
    """
    if settings["sampler"] not in SAMPLERS:
        raise unknown_name("sampler", settings["sampler"], SAMPLERS)
    for name in (settings["task"], settings["elsewhere"]):
        if name not in TASKS:
            raise unknown_name("task", name, TASKS)
    first = 1000 * (seed + 1)
    tuning = range(first, first + settings["seeds"])
    held_out = range(first + 500, first + 500 + settings["held_out"])
    best, tuned, curve = search(settings, seed, tuning)
    results = [run(settings["task"], best, s, settings["steps"]) for s in held_out]
    there = [run(settings["elsewhere"], best, s, settings["steps"])[0] for s in held_out]
    values = {
        "tuned": tuned,
        "held out": float(np.mean([share for share, _ in results])),
        "elsewhere": float(np.mean(there)),
        "policies": float(np.mean([count for _, count in results])),
    }
    return Outcome(values, {"trial": [float(k + 1) for k in range(len(curve))], "best": curve})


def search(
    settings: dict[str, Any], seed: int, seeds: range
) -> tuple[MultiWeightQConfig, float, list[float]]:
    """The best settings of the trials, their mean over `seeds`, and the best so far by trial."""

    def mean(config: MultiWeightQConfig) -> float:
        shares = [run(settings["task"], config, s, settings["steps"])[0] for s in seeds]
        return float(np.mean(shares))

    if settings["sampler"] == "default":
        value = mean(MultiWeightQConfig())
        return MultiWeightQConfig(), value, [value]
    with optional_packages("hpo", "searches"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kind = optuna.samplers.RandomSampler if settings["sampler"] == "random" else None
    sampler = (kind or optuna.samplers.TPESampler)(seed=seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    known: dict[int, MultiWeightQConfig] = {}

    def objective(trial: Any) -> float:
        known[trial.number] = suggested(trial)
        return mean(known[trial.number])

    study.optimize(objective, settings["trials"])
    values = [float(trial.value or 0.0) for trial in study.trials]
    curve = np.maximum.accumulate(values).tolist()
    return known[study.best_trial.number], float(study.best_value), curve


def suggested(trial: Any) -> MultiWeightQConfig:
    """Settings of a trial, in ranges like the paper's."""
    return MultiWeightQConfig(
        divisions=trial.suggest_int("divisions", 2, 15),
        envelope=trial.suggest_categorical("envelope", [True, False]),
        learning_rate=trial.suggest_float("learning_rate", 0.01, 1.0, log=True),
        first_epsilon=trial.suggest_float("first_epsilon", 0.01, 1.0),
        last_epsilon=trial.suggest_float("last_epsilon", 0.01, 1.0),
        decay=trial.suggest_float("decay", 0.01, 1.0),
        initial=trial.suggest_float("initial", -10.0, 50.0),
    )


def run(name: str, config: MultiWeightQConfig, seed: int, steps: int) -> tuple[float, int]:
    """Hypervolume of the returns of a run in per cent of the exact front's, and the number of
    returns on the run's own front."""
    with optional_packages("objectives", "tasks with several objectives"):
        import mo_gymnasium
    reference, episodes = TASKS[name]
    env = mo_gymnasium.make(name)
    agent = MultiWeightQ(env, config, seed).learn(steps)
    returns = agent.returns(episodes, seed + 10_000)
    exact = np.array(env.unwrapped.pareto_front(gamma=config.gamma))
    point = np.array(reference)
    share = 100 * hypervolume(returns, point) / hypervolume(exact, point)
    return share, len(non_dominated(returns))


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """The best mean hypervolume so far against trials, a panel a task."""
    searched = {
        label: records
        for label, records in rows.items()
        if records and len(records[0]["curves"]["trial"]) > 1
    }
    if not searched:
        return []
    panels = figures.by_label(
        searched, lambda r: r["curves"]["trial"], lambda r: r["curves"]["best"]
    )
    path = folder / f"objectives{suffix}.png"
    figures.curves(panels, "trials", "best hypervolume so far, % of the exact front's", path)
    return [path]
