"""Convergence of solvers of the probability flow to the exact flow with the number of steps:
windows of a linear process, whose denoiser and flow are known in closed form."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.reports import figures
from experiments.studies import Outcome
from experiments.studies.guided_law import LENGTH, LinearWorld
from experiments.studies.window_quality import rounded
from mbrl import config as configs
from mbrl.config import Count
from mbrl.errors import unknown_name
from world_models.samplers import DEIS, SAMPLERS, DPMSolverPP
from world_models.samplers.exponential import Start

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "sampler": "heun",  # of the library's deterministic ones
    "start": "lower_order",  # or runge_kutta: the first steps of a multistep method
    "samples": 200,
}
ORDERS = {
    "euler": 1,
    "ddim": 1,
    "heun": 2,
    "dpm_solver_pp": 2,
    "dpm_solver_pp_3": 3,
    "deis_1": 2,
    "deis_2": 3,
    "deis": 4,
}
STEPS = (10, 20, 40, 80, 160)
FITTED = 3  # of these, from the last, an order is fitted to
HIGH, LOW = 10.0, 0.3  # levels; without the jump to 0, whose error does not shrink with the steps


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """`error` against `steps`: the root mean square distance from the exact flow of the same noise.
    The values are the method's `order`, the one `fitted`, minus the slope of log error against log
    steps over the last three, and two errors. Starts of lower order leave an error of order 2,
    which shows once the others are smaller."""
    check(settings)
    sampler: Any = SAMPLERS[settings["sampler"]]()
    if isinstance(sampler, DEIS | DPMSolverPP):
        sampler = replace(sampler, start=settings["start"])
    generator = torch.Generator().manual_seed(seed)
    world = LinearWorld()
    shape = (settings["samples"], LENGTH, 4)
    x = HIGH * torch.randn(shape, generator=generator, dtype=torch.double)
    exact = flow(world, x, HIGH, LOW)
    errors = []
    for steps in STEPS:
        samples = sampler(world.denoise, x, levels(steps), generator)
        errors.append(float((samples - exact).square().mean().sqrt()))
    slope = np.polyfit(np.log(STEPS[-FITTED:]), np.log(errors[-FITTED:]), 1)[0]
    values = {
        "order": float(ORDERS[settings["sampler"]]),
        "fitted": rounded(-slope),
        "error_20": rounded(errors[STEPS.index(20)]),
        "error_160": rounded(errors[-1]),
    }
    curves = {"steps": [float(n) for n in STEPS], "error": [rounded(e) for e in errors]}
    return Outcome(values, curves)


def check(settings: dict[str, Any]) -> None:
    """Raise `ConfigError` for impossible settings."""
    if settings["sampler"] not in ORDERS:
        raise unknown_name("sampler of known order", settings["sampler"], ORDERS)
    configs.check(settings, {"start": Start, "samples": Count})


def levels(steps: int) -> list[float]:
    """Levels that refine to one smooth curve: their square roots are uniform."""
    high, low = HIGH**0.5, LOW**0.5
    return [(high + n / steps * (low - high)) ** 2 for n in range(steps + 1)]


def flow(world: LinearWorld, x: Tensor, now: float, then: float) -> Tensor:
    """The end points at level `then` of the probability flow from windows x [B, L, 4] at level
    `now`: a principal component keeps its place in units of its own deviation."""
    factor = ((world.values + then**2) / (world.values + now**2)).sqrt()
    rows: Tensor = (x.flatten(1) @ world.vectors * factor) @ world.vectors.T
    return rows.view_as(x)


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Error against steps, on logarithmic axes."""
    panels = figures.by_label(
        rows, lambda r: np.log10(r["curves"]["steps"]), lambda r: np.log10(r["curves"]["error"])
    )
    path = folder / f"orders{suffix}.png"
    figures.curves(panels, "log10 of steps", "log10 of the distance from the flow", path)
    return [path]
