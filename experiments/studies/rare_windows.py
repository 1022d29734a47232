"""Windows that are rare in the data, asked for by minority guidance: how many more there are,
and whether they stay possible."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.reports import figures
from experiments.runs.study import place
from experiments.studies import Outcome, prerequisites
from experiments.studies.window_quality import one_step, steps_of
from mbrl import config as configs
from mbrl import data, tasks
from mbrl.config import Count, NonNegative, Positive, Several
from mbrl.tasks.base import Task
from world_models.samplers import (
    Denoiser,
    LevelConfig,
    MinorityGuidance,
    fit_levels,
    minority_score,
)
from world_models.trajectory_diffusion import TrajectoryDiffusion
from world_models.windows import window_rows

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "data": "swingup/medium-replay",
    "length": 16,  # observations of a window
    "model": {"width": 32, "levels": 2, "updates": 20_000},  # over those of PGD's preset
    "noise": 0.5,  # level at which the score of a window is taken
    "weight": 1.0,  # of the guidance
    "classifier": {},  # settings of `LevelConfig`
    "windows": 1000,  # of each level
}
RARE = 0.95  # quantile of the rewards of logged windows above which a window is rare
SCORED = 4000  # logged windows that levels are made of, at most


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Score logged windows by how far the denoiser pulls them, cut the scores into levels, and make
    windows without guidance and at every level.

    `share` is the percentage of windows with a sum of rewards that 5 % of the logged ones have,
    among those guided to the last level but one, `share_top` among those guided to the last, and
    `share_plain` without guidance; `error`, `error_top` and `error_plain` the mean square errors of
    their next observations in deviations of the data; `related` the correlation of the score and
    that sum of rewards among the logged windows: without any, levels say nothing of rewards.
    """
    check(settings)
    model = prerequisites.generator_of_windows(settings, seed, place(folder, "model"))
    rows = data.load(settings["data"])
    task = tasks.make_for(rows.spec)
    generator = torch.Generator().manual_seed(seed)
    windows = logged(model, rows.transitions, generator)
    rewards = worth(model, windows)
    score = minority_score(model.denoise, windows, settings["noise"], generator)
    bar = torch.quantile(rewards, RARE)
    config = configs.from_dict(LevelConfig, settings["classifier"])
    classifier = fit_levels(windows, score, config, generator)
    curves: dict[str, list[float]] = {"level": [], "share": [], "error": []}
    for level in (-1, *range(config.levels)):
        draw = torch.Generator().manual_seed(seed + 1)
        denoise: Denoiser = model.denoise
        if level >= 0:
            denoise = MinorityGuidance(classifier, level, settings["weight"]).attach(model.denoise)
        made = model.windows(settings["windows"], draw, denoise=denoise)
        curves["level"].append(float(level))
        curves["share"].append(rounded(share_above(worth(model, made), bar)))
        curves["error"].append(rounded(error_of(model, made, task)))
    values = {
        f"{name}{suffix}": curves[name][at]
        for name in ("share", "error")
        for suffix, at in (("", -2), ("_top", -1), ("_plain", 0))
    }
    values["related"] = rounded(torch.corrcoef(torch.stack([score, rewards]))[0, 1])
    return Outcome(values, curves)


def needs(settings: dict[str, Any], seed: int, home: Path) -> dict[str, Path]:
    check(settings)
    config = prerequisites.windows_config(settings)
    return {"model": prerequisites.shared_fit(settings, config, seed, home)}


def check(settings: dict[str, Any]) -> None:
    """Raise `ConfigError` for impossible settings."""
    ranges = {"length": Several, "noise": Positive, "weight": NonNegative, "windows": Count}
    configs.check(settings, ranges)
    configs.from_dict(LevelConfig, settings["classifier"])


def logged(model: TrajectoryDiffusion, rows: Any, generator: torch.Generator) -> Tensor:
    """Standardised windows [N, L, F] of the data, some of them where there are many."""
    tokens: Tensor = model.tokens.normaliser(model.tokens.raw(rows))
    index = window_rows(rows, model.config.length, 1)
    order = torch.randperm(len(index), generator=generator)[:SCORED]
    return tokens[index[order]]


def worth(model: TrajectoryDiffusion, windows: Tensor) -> Tensor:
    """[B]: the sum of the rewards that windows say they have."""
    return model.tokens.rewards(windows).sum(1)


def share_above(values: Tensor, bar: Tensor) -> float:
    """The percentage of `values` [B] that are `bar` or more."""
    return 100.0 * float((values >= bar).float().mean())


def error_of(model: TrajectoryDiffusion, windows: Tensor, task: Task) -> float:
    scale = model.tokens.normaliser.std[: model.spec.obs_dim]
    error, mask, _ = one_step(steps_of(model.tokens.trajectories(windows)), task, scale)
    return float(error[mask].mean())


def rounded(value: Tensor | float) -> float:
    return float(f"{float(value):.4g}")


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Share of rare windows and their error against the level; level -1 is without guidance."""
    files = []
    for name, title in (("share", "rare windows, %"), ("error", "error of windows")):
        panels = figures.by_label(rows, figures.column("level"), figures.column(name))
        files.append(folder / f"rare-windows-{name}{suffix}.png")
        figures.curves(panels, "level asked for (-1: none)", title, files[-1])
    return files
