"""Ends of episodes that a world model learned from the flags of a log, beside the task's rule."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.recording.behaviour import uniform_actions
from experiments.reports import figures
from experiments.studies import Outcome
from experiments.studies.prerequisites import ensemble_of_part
from mbrl import config as configs
from mbrl import data, tasks
from mbrl.config import Fraction
from world_models import (
    RolloutConfig,
    TrueDynamics,
    WorldModel,
    rollout,
)
from world_models.diagnostics import end_errors, split_episodes

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "data": "invertedpendulum/medium-replay",
    "model": {},  # settings of the ensemble over those of MOPO's preset for the data
    "test_share": 0.2,  # share of the rows, in whole episodes, that no fit sees
    "starts": 2000,  # rollouts from held-out states, in the task and in the models
    "steps": 20,  # length of each
}


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Fit an ensemble and ends to the same rows. On held-out episodes: `expected` and `actual`
    numbers of ends, `surprise` the cross-entropy of the ends in nats a thousand rows, `constant`
    that of their share. From held-out states under uniform actions: shares of episodes in percent
    that end within the steps, in the `task`, in the model with the task's rule, `by_rule`, and in
    the same model with `learned` ends."""
    configs.check(settings, {"test_share": Fraction})
    dataset = data.load(settings["data"])
    train, test = split_episodes(dataset.transitions, settings["test_share"], seed)
    task = tasks.make_for(dataset.spec)
    by_rule, learned = (
        ensemble_of_part(dataset.spec, settings, seed, folder / "model", ends)
        for ends in (task.terminates, "learned")
    )
    learned.fit_ends(train)
    errors = end_errors(learned, test)
    assert errors is not None
    generator = torch.Generator().manual_seed(seed)
    starts = test.obs[torch.randint(len(test), (settings["starts"],), generator=generator)]
    places: dict[str, WorldModel] = {
        "task": TrueDynamics(task),
        "by_rule": by_rule,
        "learned": learned,
    }
    shares = {
        name: ended_share(model, starts, settings["steps"], seed) for name, model in places.items()
    }
    values = {
        "expected": errors.expected,
        "actual": float(errors.actual),
        "surprise": 1000 * errors.surprise,
        "constant": 1000 * errors.constant,
    }
    return Outcome({name: float(f"{v:.5g}") for name, v in (values | shares).items()}, {})


def ended_share(model: WorldModel, starts: Tensor, steps: int, seed: int) -> float:
    """Episodes [%] of uniform actions from `starts` [B, S] that end within the steps."""
    policy, config = uniform_actions(model.spec), RolloutConfig(horizon=steps)
    rollouts = rollout(model, policy, starts, config, torch.Generator().manual_seed(seed))
    return 100 * float((rollouts.terminated & rollouts.mask).any(1).double().mean())


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Episodes that end: in the task, and in the model by its rule and with learned ends."""
    names = {"task": "task", "by_rule": "model, task's rule", "learned": "model, learned ends"}
    panels = {title: figures.panel(rows, name) for name, title in names.items()}
    if not any(panels.values()):
        return []
    path = folder / f"ends{suffix}.png"
    figures.intervals(panels, path, "episodes that end, in %")
    return [path]
