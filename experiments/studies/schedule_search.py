"""Schedules that the search S^3 (arXiv 2312.07243) finds for few evaluations, beside plain methods
on EDM's levels, for a mixture of Gaussians whose denoiser is known."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.reports import figures
from experiments.studies import Outcome
from experiments.studies.window_quality import rounded
from mbrl import config as configs
from mbrl.config import Count
from world_models.samplers import (
    Choice,
    Heun,
    Schedule,
    SearchConfig,
    edm_levels,
    search,
    uniform_plan,
)

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "evaluations": 5,  # of the denoiser
    "samples": 64,  # that a schedule is chosen on
    "judged": 2000,  # others, that it is judged on
    "rounds": 4,  # of the search
}
CENTRES, DEVIATION = torch.tensor([[-1.0, 0.5], [1.2, -0.3], [0.3, 1.5]]).double(), 0.15
HIGH, LOW = 20.0, 0.01  # levels
FINE = 400  # steps of Heun's method that are taken for the flow
PLAIN = {
    "ddim": Choice(),
    "deis_1": Choice(2, "noise", "rho"),
    "deis_2": Choice(3, "noise", "rho"),
    "dpm_solver_pp": Choice(2, "data", "lambda"),
    "dpm_solver_pp_3": Choice(3, "data", "lambda"),
}


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Root mean square distances from the ends of the flow, on fresh noise:
    of the schedule `searched` and of each plain method. Curves: `level`, the levels found, `edm`
    the plain ones, `order` of each step, and whether it extrapolates the `data` (1) or the noise
    (0)."""
    configs.check(settings, dict.fromkeys(DEFAULTS, Count))
    count = settings["evaluations"]
    generator = torch.Generator().manual_seed(seed)
    chosen = Ends(settings["samples"], generator)
    config = SearchConfig(rounds=settings["rounds"])
    result = search(chosen.error, count, generator, config, sigma_max=HIGH, sigma_min=LOW)
    judged = Ends(settings["judged"], generator)
    levels = tuple(edm_levels(count, sigma_max=HIGH, sigma_min=LOW))
    values = {"searched": judged.error(result.schedule)}
    for name, choice in PLAIN.items():
        values[name] = judged.error(Schedule(uniform_plan(count, choice), levels))
    choices = result.schedule.plan.choices
    curves = {
        "step": [float(n) for n in range(count)],
        "level": [rounded(s) for s in result.schedule.sigmas[:-1]],
        "edm": [rounded(s) for s in levels[:-1]],
        "order": [float(min(c.order, n + 1)) for n, c in enumerate(choices)],
        "data": [float(c.prediction == "data") for c in choices],
    }
    return Outcome({name: rounded(value) for name, value in values.items()}, curves)


def denoise(x: Tensor, sigma: Tensor) -> Tensor:
    """Of three equal Gaussians: each one's posterior mean, by its share of x [B, 2]."""
    variance = (DEVIATION**2 + sigma.square())[:, None]
    share = torch.softmax(-0.5 * torch.cdist(x, CENTRES).square() / variance, 1)
    pulled = DEVIATION**2 / variance
    return share @ CENTRES * (1 - pulled) + pulled * x


class Ends:
    """Noise, and the end points of the flow from it."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self.x = HIGH * torch.randn(count, 2, generator=generator, dtype=torch.double)
        fine = edm_levels(FINE, sigma_max=HIGH, sigma_min=LOW)
        self.ends = Heun()(denoise, self.x, fine, generator)

    def error(self, schedule: Schedule) -> float:
        """Root mean square distance of a schedule's ends."""
        samples = schedule.plan(denoise, self.x, schedule.sigmas, torch.Generator())
        return float((samples - self.ends).square().sum(1).mean().sqrt())


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Levels beside EDM's, and orders, step by step."""
    lines = {
        f"{label}, {name}": [{"step": r["curves"]["step"], "y": r["curves"][key]} for r in records]
        for label, records in rows.items()
        for name, key in (("searched", "level"), ("EDM", "edm"))
    }
    panels = figures.by_label(lines, lambda r: r["step"], lambda r: np.log10(r["y"]))
    files = [folder / f"schedules{suffix}.png", folder / f"choices{suffix}.png"]
    figures.curves(panels, "step", "log10 of the level", files[0])
    named = {f"{label}, order": records for label, records in rows.items()}
    panels = figures.by_label(named, figures.column("step"), figures.column("order"))
    figures.curves(panels, "step", "order of the step", files[1])
    return files
