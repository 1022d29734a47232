"""Rank correlation of penalties with a world model's true one-step errors: on held-out data, after
uniform actions in the task, and at the ends of the model's own rollouts."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.recording.behaviour import uniform_actions
from experiments.reports import figures
from experiments.studies import Outcome
from experiments.studies.prerequisites import ensemble_of_part
from mbrl import config as configs
from mbrl import data, tasks
from mbrl.config import Fraction
from mbrl.statistics import Interval, confidence_interval, mean, rank_correlation
from mbrl.tasks import Task
from mbrl.types import Trajectories, Transitions
from world_models import (
    EnsembleDynamics,
    RolloutConfig,
    TrueDynamics,
    WorldModel,
    rollout,
)
from world_models.diagnostics import split_episodes
from world_models.disagreement import MEASURES

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "data": "pendulum/medium-replay",
    "model": {},  # settings of the ensemble over those of MOPO's preset for the data
    "test_share": 0.2,  # share of the rows, in whole episodes, that the fit never sees
    "starts": 2000,  # rollouts from states of the data, in the task and in the model
    "steps": 10,  # length of each; its last step is compared
}
PLACES = {
    "held_out": "held-out data",
    "uniform": "uniform actions in the task",
    "imagined": "the model's own rollouts",
}
# Columns of an observation that are the cosine and sine of one angle.
CIRCLES: dict[str, tuple[tuple[int, int], ...]] = {
    "Pendulum-v1": ((0, 1),),
    "CartPoleSwingUp-v0": ((2, 3),),
    "Acrobot-v1": ((0, 1), (2, 3)),
    "Reacher-v5": ((0, 2), (1, 3)),
    "InvertedDoublePendulum-v5": ((3, 1), (4, 2)),
}


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Fit an ensemble, and correlate every disagreement measure with its error in each place.

    After "Revisiting Design Choices in Offline Model-Based Reinforcement Learning" (arXiv
    2110.04135), which compares penalties where the model's rollouts lead by setting the simulator
    to imagined states. Here the rollouts take uniform actions; the paper's follow policies that
    were trained in the model. PLACE/MEASURE is Spearman's rank correlation, PLACE/MEASURE/pearson
    Pearson's; PLACE/error is the median error and PLACE/rows the number of rows compared.
    """
    configs.check(settings, {"test_share": Fraction})
    dataset = data.load(settings["data"])
    task = tasks.make_for(dataset.spec)
    train, test = split_episodes(dataset.transitions, settings["test_share"], seed)
    model = ensemble_of_part(dataset.spec, settings, seed, folder / "model", task.terminates)
    generator = torch.Generator().manual_seed(seed)
    starts = train.obs[torch.randint(len(train), (settings["starts"],), generator=generator)]
    rows = {
        "held_out": test,
        "uniform": after_uniform_actions(task, starts, settings["steps"], generator),
        "imagined": after_imagined_steps(model, task, starts, settings["steps"], generator),
    }
    values: dict[str, float] = {}
    for place, states in rows.items():
        values |= {f"{place}/{name}": value for name, value in compare(model, states).items()}
    return Outcome({name: float(f"{value:.5g}") for name, value in values.items()}, {})


@torch.no_grad()
def compare(model: EnsembleDynamics, rows: Transitions) -> dict[str, float]:
    """Correlations of every measure with the error of the members' mean on `rows`: the root mean
    square over target dimensions, in target units, as the measures see them. NaN where either is
    the same for all rows."""
    mean, variance = model.members_predict(rows.obs, rows.action)
    error = (model.targets(rows) - mean.mean(0)).square().mean(-1).sqrt().double().numpy()
    values = {"error": float(np.median(error)), "rows": float(len(error))}
    for name, function in MEASURES.items():
        level = function(mean, variance).double().numpy()
        values[name] = rank_correlation(level, error).estimate
        constant = np.ptp(level) == 0 or np.ptp(error) == 0
        values[f"{name}/pearson"] = np.nan if constant else np.corrcoef(level, error)[0, 1]
    return values


def after_uniform_actions(
    task: Task, starts: Tensor, steps: int, generator: torch.Generator
) -> Transitions:
    """The last transition of each episode of at most `steps` uniform actions in the task."""
    policy, config = uniform_actions(task.spec), RolloutConfig(horizon=steps)
    return last_steps(rollout(TrueDynamics(task), policy, starts, config, generator))


def after_imagined_steps(
    model: WorldModel, task: Task, starts: Tensor, steps: int, generator: torch.Generator
) -> Transitions:
    """The true transition at the last step of each imagined rollout of uniform actions.

    An imagined observation need not be one of the task's: its angles are put back on their circles
    first, and rows whose state still does not exist (a speed beyond its limit) are left out.
    Reacher's vector from the target to the fingertip stays as imagined.
    """
    policy, config = uniform_actions(task.spec), RolloutConfig(horizon=steps)
    reached = last_steps(rollout(model, policy, starts, config, generator))
    obs, action = on_circles(reached.obs, CIRCLES.get(task.spec.task, ())), reached.action
    truth = TrueDynamics(task).predict(obs, action, generator)
    kept = torch.ones_like(truth.terminated) if truth.valid is None else truth.valid
    return Transitions(
        obs=obs[kept],
        action=action[kept],
        reward=truth.reward[kept],
        next_obs=truth.next_obs[kept],
        terminated=truth.terminated[kept],
        truncated=~truth.terminated[kept],
    )


def last_steps(trajectories: Trajectories) -> Transitions:
    """The last live step of each trajectory that has one."""
    counts = trajectories.mask.sum(1)
    return trajectories.transitions().select(counts[counts > 0].cumsum(0) - 1)


def on_circles(obs: Tensor, pairs: tuple[tuple[int, int], ...]) -> Tensor:
    """`obs` [B, S] with each pair of columns divided by its length."""
    obs = obs.clone()
    for cosine, sine in pairs:
        length = torch.hypot(obs[:, cosine], obs[:, sine])
        obs[:, cosine] /= length
        obs[:, sine] /= length
    return obs


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Rank correlations as means over seeds with 95 % intervals: a panel for each dataset, a line
    for each measure, a marker for each place. The CSV beside it holds Pearson's too. One figure has
    every place, so the blocks of a table after its first, which have a `suffix`, need none."""
    if suffix:
        return []
    path = folder / "calibration.png"
    spearman = {label: _intervals(records, "") for label, records in rows.items()}
    with figures.drawing() as plt:
        size = (2.7 * len(rows) + 1.6, 3.6)
        figure, grid = plt.subplots(1, len(rows), figsize=size, sharey=True, squeeze=False)
        for axes, (label, panel) in zip(grid[0], spearman.items(), strict=True):
            for index, (place, title) in enumerate(PLACES.items()):
                intervals = [panel[place, name] for name in MEASURES]
                height = np.arange(len(intervals)) + 0.22 * (index - 1)
                colour = figures.COLOURS[index]
                low, middle, high = ([getattr(i, n) for i in intervals] for n in ENDS)
                axes.hlines(height, low, high, color=colour, lw=2, alpha=0.5)
                style: Any = {"marker": figures.MARKERS[index], "ls": "", "ms": 5}
                axes.plot(middle, height, color=colour, label=title, **style)
            axes.axvline(0, color="#666666", lw=1)
            axes.set_xlim(-1.02, 1.02)
            axes.set_title(label, fontsize=9)
            axes.set_xlabel("Spearman rank correlation", fontsize=9)
            axes.tick_params(labelsize=8)
        names = [name.replace("_", " ") for name in MEASURES]
        grid[0, 0].set_yticks(range(len(names)), names)
        grid[0, 0].invert_yaxis()
        figure.tight_layout(rect=(0, 0.1, 1, 1))
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncol=3, frameon=False, fontsize=9)
        figures.save(figure, path)
    _write(rows, path.with_suffix(".csv"))
    return [path]


ENDS = ("low", "estimate", "high")


def _intervals(records: list[dict[str, Any]], kind: str) -> dict[tuple[str, str], Interval]:
    """Mean over seeds with its interval by place and measure; `kind` "/pearson" for Pearson's."""
    return {
        (place, name): confidence_interval(
            np.array([record["values"][f"{place}/{name}{kind}"] for record in records]), mean
        )
        for place in PLACES
        for name in MEASURES
    }


def _write(rows: dict[str, list[dict[str, Any]]], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["data", "place", "measure", "correlation", "mean", "low", "high"])
        for label, records in rows.items():
            for title, kind in (("spearman", ""), ("pearson", "/pearson")):
                for (place, name), interval in _intervals(records, kind).items():
                    numbers = [f"{v:.6g}" for v in interval]
                    writer.writerow([label, place, name, title, *numbers])
