"""A generator of windows trained by the task's own rewards: what its actions earn, and whether its
windows stay possible."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from algorithms.diffusion_rl import (
    DiffusionFinetuning,
    FinetuningConfig,
    Fixed,
    fit_conditional,
    simulated_return,
    window_error,
)
from experiments.reports import figures
from experiments.runs.study import place
from experiments.studies import Outcome, prerequisites
from mbrl import checkpoint, data, tasks
from mbrl import config as configs
from mbrl.config import Count, Several
from mbrl.tasks.base import Task
from mbrl.types import Transitions
from world_models.trajectory_diffusion import TrajectoryDiffusion
from world_models.windows import window_starts

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "data": "pendulum/medium-replay",
    "length": 16,  # observations of a window
    "model": {"width": 32, "levels": 2, "updates": 5000},  # over those of PGD's preset
    "conditional": 6000,  # updates more, with the first observation given
    "tuning": {},  # settings of `FinetuningConfig`
    "evaluations": 200_000,  # samples that go through the network, sampled and learned from
    "windows": 512,  # of an evaluation
}
EVALUATIONS = 10  # along the way, evenly
JUDGED = 0.2  # share of the episodes in which only evaluations begin


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
    generator = prerequisites.generator_of_windows(settings, seed, place(folder, "model"))
    rows = data.load(settings["data"])
    task = tasks.make_for(rows.spec)
    learn, judge = starts(generator, rows.transitions, seed, settings["windows"])
    path = folder / "tuning.pt"
    network = generator.average
    if not path.exists():
        draw = torch.Generator().manual_seed(seed + 5)
        network = fit_conditional(network, learn, judge.mask, settings["conditional"], draw)
    tuning = finetuning(generator, network, task, learn, settings, seed)
    curves: dict[str, list[float]] = {k: [] for k in ("evaluations", "return", "error")}
    if path.exists():
        content = checkpoint.load(path)
        tuning.load_state_dict(content["tuning"])
        curves = content["curves"]

    def evaluate() -> None:
        count = tuning.evaluations
        noise = torch.Generator().manual_seed(seed + 11)
        windows = tuning.samples(len(judge.values), noise, judge)
        tuning.evaluations = count  # evaluations are not part of the budget
        curves["evaluations"].append(float(count))
        curves["return"].append(float(simulated_return(generator.tokens, windows, task).mean()))
        curves["error"].append(float(window_error(generator.tokens, windows, task).nanmean()))
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
    values |= {"logged": float(simulated_return(generator.tokens, judge.values, task).mean())}
    return Outcome(values, {k: [float(f"{v:.5g}") for v in c] for k, c in curves.items()})


def needs(settings: dict[str, Any], seed: int, home: Path) -> dict[str, Path]:
    check(settings)
    config = prerequisites.windows_config(settings)
    return {"model": prerequisites.shared_fit(settings, config, seed, home)}


def check(settings: dict[str, Any]) -> None:
    """Raise `ConfigError` for impossible settings."""
    counts = dict.fromkeys(("evaluations", "windows", "conditional"), Count)
    configs.check(settings, {"length": Several} | counts)
    configs.from_dict(FinetuningConfig, settings["tuning"])


def starts(
    generator: TrajectoryDiffusion, rows: Transitions, seed: int, count: int
) -> tuple[Tensor, Fixed]:
    """Standardised windows [N, L, F] from every row of four in five episodes, in whose first
    observations rounds begin; and `count` windows of the others, with these observations fixed."""
    tokens: Tensor = generator.tokens.normaliser(generator.tokens.raw(rows))
    first = window_starts(rows, generator.config.length, 1)
    ends = torch.tensor([end for _, end in rows.episodes()])
    draw = torch.Generator().manual_seed(seed + 7)
    held = torch.randperm(len(ends), generator=draw)[: max(1, int(JUDGED * len(ends)))]
    out = torch.isin(torch.searchsorted(ends, first, right=True), held)
    learn, others = generator.gather(tokens, first[~out]), first[out]
    order = torch.randperm(len(others), generator=draw)
    judge = generator.gather(tokens, others[order[:count]])
    mask = torch.zeros_like(learn[0], dtype=torch.bool)
    mask[0, : generator.spec.obs_dim] = True
    return learn, Fixed(mask, judge)


def finetuning(
    generator: TrajectoryDiffusion,
    network: nn.Module,
    task: Task,
    learn: Tensor,
    settings: dict[str, Any],
    seed: int,
) -> DiffusionFinetuning:
    mask = torch.zeros_like(learn[0], dtype=torch.bool)
    mask[0, : generator.spec.obs_dim] = True

    def prompts(count: int, draw: torch.Generator) -> Fixed:
        return Fixed(mask, learn[torch.randint(len(learn), (count,), generator=draw)])

    return DiffusionFinetuning(
        network,
        tuple(learn.shape[1:]),
        lambda windows: simulated_return(generator.tokens, windows, task),
        prompts,
        configs.from_dict(FinetuningConfig, settings["tuning"]),
        seed=seed,
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
