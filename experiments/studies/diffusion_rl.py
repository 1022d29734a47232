"""A generator of windows trained by the task's own rewards: what its actions earn, and whether its
windows stay possible."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from algorithms.diffusion_rl import (
    DiffusionFinetuning,
    FinetuningConfig,
    Fixed,
    simulated_return,
    window_error,
)
from experiments.reports import figures
from experiments.runs.study import place
from experiments.studies import Outcome, conditional_windows, prerequisites
from experiments.studies.conditional_windows import ConditionalWindows
from mbrl import checkpoint
from mbrl import config as configs
from mbrl.config import Count

VERSION = 1
DEFAULTS: dict[str, Any] = conditional_windows.DEFAULTS | {
    "tuning": {},  # settings of `FinetuningConfig`
    "evaluations": 200_000,  # samples that go through the network, sampled and learned from
    "windows": 2048,  # of an evaluation
}
EVALUATIONS = 10  # along the way, evenly


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Fit the generator, fit it on with the first observation of a window given, and fine-tune it
    until `evaluations` samples have gone through it.

    The reward of a window is what the task pays for its actions from its first observation, which
    is one of the data. `return` is its mean from starts that no round begins in, in windows sampled
    without fresh noise; `gain` what it has more than the generator's before the fine-tuning, from
    the same starts and noise; `logged` what the data's own windows earn from there; `error` the
    mean square error of next observations in deviations of the data, `error_before` that of the
    generator before.
    """
    check(settings)
    windows = conditional_windows.conditional_windows(
        settings, seed, place(folder, "model"), settings["windows"]
    )
    tokens, task, judge = windows.generator.tokens, windows.task, windows.judge
    tuning = finetuning(windows, settings, seed)
    path = folder / "tuning.pt"
    curves: dict[str, list[float]] = {k: [] for k in ("evaluations", "return", "error")}
    if path.exists():
        content = checkpoint.load(path)
        tuning.load_state_dict(content["tuning"])
        curves = content["curves"]

    def evaluate() -> None:
        count = tuning.evaluations
        noise = torch.Generator().manual_seed(seed + 11)
        made = tuning.samples(len(judge.values), noise, judge)
        tuning.evaluations = count  # evaluations are not part of the budget
        curves["evaluations"].append(float(count))
        curves["return"].append(float(simulated_return(tokens, made, task).mean()))
        curves["error"].append(float(window_error(tokens, made, task).nanmean()))
        checkpoint.save(path, {"tuning": tuning.state_dict(), "curves": curves})

    if not curves["return"]:
        evaluate()
    every = settings["evaluations"] / EVALUATIONS
    while tuning.evaluations < settings["evaluations"]:
        tuning.update()
        if tuning.evaluations >= every * len(curves["return"]):
            evaluate()
    values = {"return": curves["return"][-1], "error": curves["error"][-1]}
    values |= {"gain": curves["return"][-1] - curves["return"][0]}
    values |= {"error_before": curves["error"][0]}
    values |= {"logged": float(simulated_return(tokens, judge.values, task).mean())}
    return Outcome(values, {k: [float(f"{v:.5g}") for v in c] for k, c in curves.items()})


def needs(settings: dict[str, Any], seed: int, home: Path) -> dict[str, Path]:
    check(settings)
    config = prerequisites.windows_config(settings)
    return {"model": prerequisites.shared_fit(settings, config, seed, home)}


def check(settings: dict[str, Any]) -> None:
    """Raise `ConfigError` for impossible settings."""
    ranges = conditional_windows.RANGES | {"evaluations": Count, "windows": Count}
    configs.check(settings, ranges)
    configs.from_dict(FinetuningConfig, settings["tuning"])


def finetuning(
    windows: ConditionalWindows, settings: dict[str, Any], seed: int
) -> DiffusionFinetuning:
    learn, mask = windows.learn, windows.judge.mask

    def prompts(count: int, draw: torch.Generator) -> Fixed:
        return Fixed(mask, learn[torch.randint(len(learn), (count,), generator=draw)])

    def reward(made: Tensor) -> Tensor:
        return simulated_return(windows.generator.tokens, made, windows.task)

    tuning = configs.from_dict(FinetuningConfig, settings["tuning"])
    return DiffusionFinetuning(
        windows.network, tuple(learn.shape[1:]), reward, prompts, tuning, seed=seed
    )


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Returns, and errors of windows, against evaluations of the network."""
    files = []
    for name, title in (("return", "return of the actions"), ("error", "error of windows")):
        panels = figures.by_label(rows, figures.column("evaluations"), figures.column(name))
        if panels:
            files.append(folder / f"diffusion-rl-{name}{suffix}.png")
            figures.curves(panels, "evaluations of the network", title, files[-1])
    return files
