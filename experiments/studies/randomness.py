"""What randomness of a task does to offline learning: rows that one behaviour policy records in the
task with a kind of randomness, learners on them, scores in the same task. The kinds follow STORI
(arXiv 2509.01793), which asks this of agents that learn in games."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.recording.behaviour import record
from experiments.recording.collect import Collect, FamilyRecorder, recordable_card
from experiments.reports import figures
from experiments.runs import training as runs
from experiments.settings import RunSettings, build_config, merge, preset
from experiments.studies import Outcome
from mbrl import tasks
from mbrl.data import from_arrays, save_npz
from mbrl.data.loading import joined_rows
from mbrl.records import Evaluations
from mbrl.statistics import Interval, confidence_interval, mean
from mbrl.types import Dataset, Provenance

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "family": "pendulum",  # whose task and behaviour policies are taken
    "tiers": ["medium", "random"],  # half of the rows of each
    "options": {},  # fields of mbrl.tasks.randomness.Randomness
    "rows": 10_000,
    "algorithm": "iql",
    "config": {},  # settings over those of the local presets
    "updates": 5000,
    "episodes": 100,  # fixed starts of the evaluation
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "noise of actions": {"action_noise": 0.3},
    "sticky actions": {"sticky_actions": 0.25},
    "random actions": {"random_actions": 0.3},
    "time jumps": {"time_jumps": 0.3},
    "weaker after a while": {"drift_at": 100, "drift_gain": 0.5},
    "speed unseen": {"hidden_entries": [2]},
    "blackouts": {"blackout": 0.3},
    "noise of rewards": {"reward_noise": 4.0},
    "delay": {"action_delay": 3},
    "disturbance": {"disturbance": 0.3},
}
ALGORITHM_NAMES = ("bc", "td3_bc", "iql", "edac", "mopo", "neubay")


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Record, train and evaluate in the task with the randomness of `options`.

    `score` is of 100 greedy episodes of the last weights, `data` that of the rows' episodes; 0 and
    100 are those of the plain task.
    """
    path = folder / "rows.npz"
    data = recorded(settings, seed)
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        save_npz(data, path)
    name, episodes = settings["algorithm"], settings["episodes"]
    run = RunSettings(
        name, str(path.resolve()), steps=settings["updates"], seed=seed, eval_every=0,
        final_episodes=episodes, tensorboard=False,
    )  # fmt: skip
    local = preset(name, f"{settings['family']}/medium")["config"]
    config = build_config(name, merge(local, settings["config"]))
    runs.ensure(run, config, folder / "run")
    runs.TrainingRun(folder / "run").finish()
    returns = Evaluations.load(folder / "run" / "evaluations.npz").returns[-1]
    values = {
        "score": float(data.spec.score(returns.mean())),
        "data": float(data.spec.score(data.transitions.returns().double().mean())),
    }
    return Outcome(values, {})


def recorded(settings: dict[str, Any], seed: int) -> Dataset:
    """The rows of a seed: whole episodes of each tier's behaviour policy, one after the other."""
    family, tiers = settings["family"], settings["tiers"]
    card = recordable_card(family)
    maker = FamilyRecorder(card, Collect(family, tiers=tuple(tiers)), Path())
    plain = tasks.make_for(card.spec(card.tier(tiers[0]))).spec
    task = tasks.make(plain.task, **plain.task_options, **settings["options"])
    generator = torch.Generator().manual_seed(10_000 + seed)
    parts = [
        record(
            task,
            maker.behaviour(card.tier(tier), lambda text, total: lambda done: None),
            settings["rows"] // len(tiers),
            generator,
            report=lambda count: None,
        )
        for tier in tiers
    ]
    rows = joined_rows(parts)
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    return from_arrays(
        **{name: getattr(rows, name) for name in names},
        spec=task.spec,
        provenance=Provenance(card="recorded with randomness"),
    )


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Scores by kind of randomness, a panel an algorithm."""
    panels: dict[str, dict[str, Interval]] = {}
    for label, records in rows.items():
        kind, _, algorithm = label.rpartition(", ")
        scores = np.array([record["values"]["score"] for record in records])
        if len(scores):
            panels.setdefault(algorithm, {})[kind] = confidence_interval(scores, mean)
    whole = {name: by for name, by in panels.items() if set(by) == set(KINDS)}
    if not whole:
        return []
    path = folder / f"randomness{suffix}.png"
    figures.intervals(whole, path)
    return [path]


def _kinds(algorithms: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {"label": f"{kind}, {name}", "algorithm": name, "options": options}
        for kind, options in KINDS.items()
        for name in algorithms
    ]


ROWS = {
    "markov": lambda: _kinds(ALGORITHM_NAMES[:-1]),
    "history": lambda: _kinds(ALGORITHM_NAMES[-1:]),
}
