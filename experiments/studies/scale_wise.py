"""Windows from coarse to fine, and what refinement on own coarse windows does to them."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.reports import figures
from experiments.studies import Outcome
from experiments.studies.window_quality import one_step, rounded, steps_of
from mbrl import data, tasks
from mbrl.files import replacing
from mbrl.statistics import Interval
from world_models import DiffusionConfig, TrajectoryDiffusion
from world_models.samplers import mmd_squared, radial_kernel
from world_models.scales import RefinementConfig, ScaleConfig, ScaleModel

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "data": "swingup/medium",
    "length": 32,  # points of a window
    "fit": 3000,  # updates given the data's coarse windows
    "more": 500,  # updates of each refinement after the fit, and of none for as long
    "windows": 1000,  # that are judged
    "levels": 2,  # blocks of the network
    "batch": 32,
}
VARIANTS: dict[str, RefinementConfig | None] = {
    "usual": None,
    "sar": RefinementConfig(),
    "sar_1": RefinementConfig(weight=1.0),
    "sar_all": RefinementConfig(weight=1.0, scales="all"),
    "data_all": RefinementConfig(weight=1.0, scales="all", target="data"),
}
MEASURED = {
    "gap": "surprise by own coarse windows",
    "mmd": "distance to held-out windows",
    "error": "one-step error",
}


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """A fit, then every variant of further updates from it. Of each, `begun` (the fit alone) first:
    `gap_NAME`, by how much the bins of held-out windows are less likely, a number, given what the
    model draws for the scale before than given the data's (the mean over scales but the first);
    `mmd_NAME`, the square root of the squared maximum mean discrepancy (0 where it is below) of
    samples and held-out windows; `error_NAME`, the mean square one-step error of samples in
    deviations of the data's observations. `floor`: that distance of as many training windows."""
    dataset = data.load(settings["data"])
    config = DiffusionConfig(length=settings["length"], stride=1, holdout_fraction=0.4)
    frame = TrajectoryDiffusion(dataset.spec, config, seed=seed)
    train, held = frame.split(dataset.transitions)
    raw = frame.tokens.raw(dataset.transitions)
    frame.tokens.fit(raw[train].flatten(0, 1))
    rows = frame.tokens.normaliser(raw)
    model = _fitted(rows, train, settings, seed, folder)
    generator = torch.Generator().manual_seed(seed + 5)
    some = held[torch.randperm(len(held), generator=generator)[: settings["windows"]]]
    like = train[torch.randperm(len(train), generator=generator)[: len(some)]]
    others = rows[some]
    kernel = radial_kernel(*_widths(others))
    scale = dataset.transitions.obs.std(0, correction=0).clamp_min(1e-6)
    task = tasks.make_for(dataset.spec)

    def judged(own: ScaleModel, name: str) -> dict[str, float]:
        draw = torch.Generator().manual_seed(seed + 7)
        made = own.sample(settings["windows"], draw)
        given, alone = own.errors(others, draw)
        wrong, valid, _ = one_step(steps_of(frame.tokens.trajectories(made)), task, scale)
        apart = float(mmd_squared(made, others, kernel))
        return {
            f"gap_{name}": float((alone - given)[1:].mean()),
            f"mmd_{name}": max(0.0, apart) ** 0.5,
            f"error_{name}": float(wrong[valid].mean()),
        }

    values = judged(model, "begun")
    for name, refinement in VARIANTS.items():
        own = ScaleModel(model.features, model.config, seed=seed)
        own.load_state_dict(copy.deepcopy(model.state_dict()))
        _train(own, rows, train, settings["more"], refinement, settings["batch"])
        values |= judged(own, name)
    near = float(mmd_squared(rows[like], others, kernel))
    values["floor"] = max(0.0, near) ** 0.5
    return Outcome({name: rounded(value) for name, value in values.items()}, {})


def _fitted(
    rows: Tensor,
    index: Tensor,
    settings: dict[str, Any],
    seed: int,
    folder: Path,
) -> ScaleModel:
    """The fit, from its file if it was finished before."""
    length = settings["length"]
    scales = tuple(n for n in (4, 8, 16, 32, 64) if n < length)
    config = ScaleConfig(scales=(*scales, length), levels=settings["levels"])
    model, path = ScaleModel(rows.shape[1], config, seed=seed), folder / "fit.pt"
    if path.exists():
        model.load_state_dict(torch.load(path, weights_only=True))
        return model
    _train(model, rows, index, settings["fit"], None, settings["batch"])
    with replacing(path) as file:
        torch.save(model.state_dict(), file)
    return model


def _train(
    model: ScaleModel,
    rows: Tensor,
    index: Tensor,
    updates: int,
    refinement: RefinementConfig | None,
    batch: int,
) -> None:
    for _ in range(updates):
        drawn = torch.randint(len(index), (batch,), generator=model.generator)
        windows = rows[index[drawn]]
        if refinement is None:
            model.update(windows)
        else:
            model.refine(windows, refinement)


def _widths(windows: Tensor) -> tuple[float, ...]:
    """Half, once and twice the median distance of two windows."""
    median = float(torch.pdist(windows[:200].flatten(1)).median())
    return (0.5 * median, median, 2 * median)


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Every measure of the fit and of what came after it."""
    panels: dict[str, dict[str, Interval]] = {}
    for label, records in rows.items():
        for metric, title in MEASURED.items():
            parts = [figures.panel({n: records}, f"{metric}_{n}") for n in ("begun", *VARIANTS)]
            panels[f"{label}: {title}"] = {n: value for one in parts for n, value in one.items()}
    panels = {title: panel for title, panel in panels.items() if panel}
    if not panels:
        return []
    path = folder / f"scale-wise{suffix}.png"
    figures.intervals(panels, path, "")
    return [path]
