"""Guidance in a world where the distribution it aims at is known: windows of a linear process with
Gaussian behaviour, a Gaussian policy, and the Gaussian that is their product (policy-guided
diffusion, arXiv 2404.06356)."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from experiments.reports import figures
from experiments.studies import Outcome
from mbrl import config as configs
from mbrl.config import Count
from mbrl.errors import ConfigError, unknown_name
from mbrl.types import Spec
from world_models import PolicyGuidance
from world_models.samplers import SAMPLERS, FeynmanKac, edm_levels
from world_models.windows import Tokens

VERSION = 2
DEFAULTS: dict[str, Any] = {
    "mode": "paper",  # or score, or corrected: Feynman-Kac correctors
    "normalise": False,  # divide the gradient by its norm over a window (paper alone)
    "denoised": False,  # take the gradient at the denoised window
    "sampler": "churn",  # of the library's, with its own settings (corrected has its own)
    "steps": 64,  # noise levels
    "samples": 5000,
}
WEIGHTS = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
LENGTH = 8  # steps of a window
DECAY, GAIN, SPREAD = 0.8, -0.3, 0.4  # s' = DECAY s + u; behaviour u ~ N(GAIN s, SPREAD^2)
TARGET = (0.5, -0.2, 0.6)  # policy u ~ N(0.5 - 0.2 s, 0.6^2)
BOUND = 100.0  # some hundred deviations: an entry beyond it is no sample of the distribution
SPEC = Spec("linear", 1, 1, action_low=(-1.0,), action_high=(1.0,))


class LinearTokens(Tokens):
    """Tokens [s, u, 0, 0] as they are: no squash, no scale."""

    def unit_actions(self, tokens: Tensor) -> Tensor:
        return tokens[..., self.actions]


class LinearPolicy:
    """The target policy."""

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        offset, gain, deviation = TARGET
        return -0.5 * ((action - offset - gain * obs) / deviation).square().sum(-1)


class LinearWorld:
    """The distribution of the behaviour's windows [L, 4], its denoiser, and its product with the
    policy."""

    def __init__(self) -> None:
        columns = []
        for index in range(1 + LENGTH):
            noise = torch.zeros(1 + LENGTH).double()
            noise[index] = 1.0
            s, rows = noise[0], []
            for t in range(LENGTH):
                u = GAIN * s + SPREAD * noise[1 + t]
                rows += [s, u, torch.zeros_like(s), torch.zeros_like(s)]
                s = DECAY * s + u
            columns.append(torch.stack(rows))
        matrix = torch.stack(columns, 1)
        self.covariance = matrix @ matrix.T
        values, self.vectors = torch.linalg.eigh(self.covariance)
        self.values = values.clamp_min(0)

    def denoise(self, x: Tensor, sigma: Tensor) -> Tensor:
        share = self.values / (self.values + sigma.square()[:, None])
        rows: Tensor = (x.flatten(1) @ self.vectors * share) @ self.vectors.T
        return rows.view_as(x)

    def product(self, weight: float) -> tuple[Tensor, Tensor]:
        """Mean and covariance of behaviour times policy^weight, by conditioning on the policy's
        residual being 0, a step after the other."""
        offset, gain, deviation = TARGET
        mean, covariance = torch.zeros(4 * LENGTH).double(), self.covariance.clone()
        for t in range(LENGTH if weight > 0 else 0):
            h = torch.zeros(4 * LENGTH).double()
            h[4 * t + 1], h[4 * t] = 1.0, -gain
            k = covariance @ h / (h @ covariance @ h + deviation**2 / weight)
            mean = mean + k * (offset - h @ mean)
            covariance = covariance - torch.outer(k, h @ covariance)
        return mean, covariance


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """For every weight: `mean`, that of the actions, and `exact`, the product's; `bias`, the
    largest error of the mean of an action in its exact deviations, and `chance`, the same of as
    many independent draws from the product itself; `spread`, the mean over steps of an action's
    deviation over its exact one; `dynamics`, the root mean square of s' - 0.8 s - u, which is 0 in
    the data. All but `exact` and `chance` are NaN where samples left all bounds. The values are
    those at weight 1."""
    modes = Literal["paper", "score", "corrected"]
    configs.check(settings, {"mode": modes, "steps": Count, "samples": Count})
    if settings["sampler"] not in SAMPLERS:
        raise unknown_name("sampler", settings["sampler"], SAMPLERS)
    for name, read in (("normalise", ("paper",)), ("denoised", ("paper", "score"))):
        if settings[name] and settings["mode"] not in read:
            raise ConfigError(
                f"{name} is {settings[name]} and mode {settings['mode']!r}, which does not read "
                f"it; leave it out, or give the mode {' or '.join(map(repr, read))}"
            )
    world = LinearWorld()
    curves: dict[str, list[float]] = {"weight": list(WEIGHTS)}
    for weight in WEIGHTS:
        generator = torch.Generator().manual_seed(seed)
        x, w = samples(world, settings, weight, generator)
        mean, covariance = world.product(weight)
        exact, deviation = mean[1::4], covariance.diagonal()[1::4].sqrt()
        u = x[..., 1]
        average = w @ u
        spread = (w @ (u - average).square()).sqrt()
        drawn = torch.randn(len(x), LENGTH, generator=generator, dtype=torch.double)
        root = torch.linalg.cholesky(covariance[1::4, 1::4])
        slip = x[:, 1:, 0] - DECAY * x[:, :-1, 0] - x[:, :-1, 1]
        numbers = {
            "mean": average.mean(),
            "exact": exact.mean(),
            "bias": ((average - exact) / deviation).abs().max(),
            "chance": ((drawn @ root.T).mean(0) / deviation).abs().max(),
            "spread": (spread / deviation).mean(),
            "dynamics": (w @ slip.square()).mean().sqrt(),
        }
        for name, value in numbers.items():
            if name not in ("exact", "chance") and not float(x.abs().max()) < BOUND:
                value = torch.tensor(torch.nan)
            curves.setdefault(name, []).append(float(f"{float(value):.4g}"))
    at = WEIGHTS.index(1.0)
    return Outcome({n: c[at] for n, c in curves.items() if n != "weight"}, curves)


def samples(
    world: LinearWorld, settings: dict[str, Any], weight: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Windows [N, L, 4] and their weights [N]."""
    tokens = LinearTokens(SPEC).double()
    levels = edm_levels(settings["steps"], sigma_max=10.0, sigma_min=0.01)
    shape = (settings["samples"], LENGTH, 4)
    x = levels[0] * torch.randn(shape, generator=generator, dtype=torch.double)
    mode: Literal["paper", "score"] = "score" if settings["mode"] == "score" else "paper"
    guidance = PolicyGuidance(
        LinearPolicy(), weight, mode, settings["normalise"], denoised=settings["denoised"]
    )
    if settings["mode"] == "corrected":

        def reward(x: Tensor) -> Tensor:
            return guidance.log_likelihood(tokens, x)

        corrected = FeynmanKac(reward=reward if weight > 0 else None, tilt=weight)
        samples, log_weights = corrected.particles(world.denoise, x, levels, generator)
        return samples, log_weights.exp()
    denoise, before = guidance.attach(tokens, world.denoise)
    samples = SAMPLERS[settings["sampler"]]()(denoise, x, levels, generator, before=before)
    return samples, samples.new_full((len(samples),), 1.0 / len(samples))


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Mean of the actions against the weight beside the exact one, and the two errors."""
    files = []
    for name, title in (
        ("mean", "mean of the actions"),
        ("bias", "error of the mean / deviation"),
        ("spread", "deviation / exact deviation"),
    ):
        panels = figures.by_label(rows, figures.column("weight"), figures.column(name))
        beside = {"mean": "exact", "bias": "chance"}.get(name)
        if beside is not None:
            known = [r["curves"][beside] for records in rows.values() for r in records]
            none = np.full(len(WEIGHTS), np.nan)
            line = figures.Curve(np.array(WEIGHTS), np.mean(known, axis=0), none, none)
            label = "exact" if name == "mean" else "draws from the product"
            panels = {panel: {**lines, label: line} for panel, lines in panels.items()}
        files.append(folder / f"guided-{name}{suffix}.png")
        figures.curves(panels, "weight of the policy", title, files[-1])
    return files
