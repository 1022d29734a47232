"""Growth of an ensemble's error along its own predictions, with and without LayerNorm: fitted to
narrow data, with the actions of broader data.

The claim is NEUBAY's (arXiv 2512.04341): LayerNorm bounds what a member adds to the state in a
step, so that errors grow about linearly instead of exploding.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from experiments.reports import figures
from experiments.runs import model_fits
from experiments.settings import preset_config
from experiments.studies import Outcome
from mbrl import config as configs
from mbrl import data
from mbrl.errors import DataError
from mbrl.types import Transitions
from world_models import EnsembleConfig, EnsembleDynamics
from world_models.diagnostics import window_starts

VERSION = 3
DEFAULTS: dict[str, Any] = {
    "train": "swingup/expert",  # what the ensemble is fitted to
    "test": "swingup/random",  # whose action sequences drive it
    "layer_norm": True,
    "members": 32,  # trained; 20 of 32 are kept, or as many in proportion
    "epochs": 150,
    "steps": 200,  # longest open-loop prediction
    "windows": 200,  # sequences, each in a member of its own
    "every_member": False,  # instead: each sequence in every member that is kept
    "noise": False,  # sample next states; false: take their means
    "model": {},  # settings of the ensemble over NEUBAY's
}
LARGEST = 1e12  # an error beyond it is shown as this
EXPLODED = 1e3  # an error beyond it counts as one


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Fit, then predict open loop.

    `error_1`, `error_16`, `error_end` are the median over windows of the root mean square error of
    the observation, in standard deviations of the training data, after so many steps; `along` the
    rank correlation, over all steps of all windows, of that error with the disagreement where the
    step was made, and `spearman` that of disagreement and one-step error on logged test rows.
    `exponent` is b where the median grows as steps^b over the last nine tenths of the steps (1:
    linear growth), `exploded` the share of windows whose error has been beyond 1,000. Raises
    `ConfigError` for settings that an ensemble does not have.
    """
    test = data.load(settings["test"]).transitions
    model = fitted(settings, seed, folder / "model")
    errors, levels = open_loop(
        model,
        test,
        settings["steps"],
        settings["windows"],
        seed,
        noise=settings["noise"],
        every_member=settings["every_member"],
    )
    median = np.median(errors, axis=1)
    at = {"error_1": 0, "error_16": min(15, len(median) - 1), "error_end": len(median) - 1}
    kept = np.unique(np.geomspace(1, len(median), 60).round().astype(int)) - 1
    return Outcome(
        {name: float(median[i]) for name, i in at.items()}
        | {
            "exponent": growth(median),
            "exploded": float((errors.max(0) > EXPLODED).mean()),
            "along": float(stats.spearmanr(levels.ravel(), errors.ravel())[0]),
            "spearman": _ranks(model, test, seed),
        },
        {
            "step": (kept + 1.0).tolist(),
            "median": median[kept].tolist(),
            "low": np.quantile(errors, 0.25, axis=1)[kept].tolist(),
            "high": np.quantile(errors, 0.75, axis=1)[kept].tolist(),
        },
    )


def fitted(settings: dict[str, Any], seed: int, folder: Path) -> EnsembleDynamics:
    """The ensemble, fitted in `folder`, from its checkpoint if there is one."""
    own = {
        "members": settings["members"],
        "elites": max(1, settings["members"] * 5 // 8),
        "max_epochs": settings["epochs"],
        "layer_norm": settings["layer_norm"],
    }
    base = configs.to_dict(preset_config("neubay", settings["train"]).model)
    config = configs.from_dict(EnsembleConfig, base | own | settings["model"])
    model_fits.ensure(model_fits.FitSettings(settings["train"], seed), config, folder)
    model_fits.ModelFit(folder).finish()
    model = EnsembleDynamics(data.load(settings["train"]).spec, config, seed=seed)
    model.load_state_dict(model_fits.load(folder))
    return model


def growth(errors: np.ndarray) -> float:
    """b of the least-squares line log error = a + b log step through `errors` [T] (above 0, at
    steps 1..T), at up to 60 steps evenly spaced in their logarithm from T / 10 to T; NaN for
    one step."""
    last = len(errors)
    steps = np.unique(np.geomspace(max(1.0, last / 10), last, 60).round().astype(int))
    if last < 2:
        return float("nan")
    return float(np.polyfit(np.log(steps), np.log(errors[steps - 1]), 1)[0])


@torch.no_grad()
def open_loop(
    model: EnsembleDynamics,
    test: Transitions,
    steps: int,
    windows: int,
    seed: int,
    *,
    noise: bool = False,
    every_member: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Root mean square errors [steps, W] of members' predictions (means, or with `noise` samples)
    along the logged actions, each of up to `windows` windows in one member or in `every_member`;
    and the disagreement [steps, W] at the observation that each step was made from. Raises
    `DataError` where no episode is that long."""
    starts = window_starts(test, steps)
    if len(starts) == 0:
        raise DataError(f"no episode of the test data has {steps} steps; use fewer steps")
    generator = torch.Generator().manual_seed(seed)
    rows = starts[torch.randperm(len(starts), generator=generator)[:windows]]
    if every_member:
        rows = rows.repeat_interleave(model.num_members)
    member = torch.arange(len(rows)) % model.num_members
    scale = model.obs_normaliser.std
    obs, errors, levels = test.obs[rows], [], []
    for t in range(steps):
        level = model.disagreement(obs, test.action[rows + t], "epistemic_mean").double()
        levels.append(torch.nan_to_num(level, LARGEST, LARGEST).clamp_max(LARGEST))
        guess, variance = model.chosen_predict(obs, test.action[rows + t], member)
        if noise:
            drawn = torch.randn(guess.shape, generator=generator)
            guess = guess + variance.sqrt() * drawn
        obs = model.reached(obs, guess)
        gap = (obs - test.next_obs[rows + t]) / scale
        error = gap.double().square().mean(-1).sqrt()
        errors.append(torch.nan_to_num(error, LARGEST, LARGEST).clamp_max(LARGEST))
        obs = torch.nan_to_num(obs, 0.0, 1e18, -1e18)
    return torch.stack(errors).numpy(), torch.stack(levels).numpy()


@torch.no_grad()
def _ranks(model: EnsembleDynamics, test: Transitions, seed: int) -> float:
    """Spearman's rank correlation of the disagreement with the one-step error on test rows."""
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(seed))[:5000]
    rows = test.select(order)
    mean, _ = model.members_predict(rows.obs, rows.action)
    error = (model.targets(rows) - mean.mean(0)).square().mean(-1).sqrt()
    level = model.disagreement(rows.obs, rows.action, "epistemic_mean")
    return float(stats.spearmanr(level.numpy(), error.numpy())[0])


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Median error against steps, on logarithmic axes."""
    panels = figures.by_label(
        rows, lambda r: np.log10(r["curves"]["step"]), lambda r: np.log10(r["curves"]["median"])
    )
    path = folder / f"compounding{suffix}.png"
    figures.curves(panels, "log10 of steps", "log10 of the error / deviation", path)
    return [path]
