"""What several studies begin with: a training run, a fitted generator of windows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import algorithms
from experiments import fits
from experiments import run as runs
from experiments.settings import RunSettings, build_config, merge, preset, preset_config
from mbrl import config as configs
from mbrl import data
from world_models import DiffusionConfig, TrajectoryDiffusion

# Settings of every study that begins with a run, beside its `data` and `algorithm`.
DEFAULTS: dict[str, Any] = {
    "config": {},  # settings over the preset's
    "steps": 5000,  # updates
    "episodes": 100,  # fixed starts of the last evaluation
}


def config(settings: dict[str, Any]) -> Any:
    """The preset of the study's `algorithm` on its `data`, with its `config` over it."""
    name, where = settings["algorithm"], settings["data"]
    return build_config(name, merge(preset(name, where)["config"], settings["config"]))


def agent(
    settings: dict[str, Any], chosen: Any, seed: int, folder: Path, log_every: int | None = None
) -> Any:
    """The agent that a study's `algorithm`, `data`, `steps` and `episodes` (of the last evaluation)
    describe, trained with the config `chosen` in `folder`, where a run that stopped goes on."""
    described = RunSettings(
        settings["algorithm"],
        settings["data"],
        steps=settings["steps"],
        seed=seed,
        final_episodes=settings["episodes"],
        tensorboard=False,
    )
    if log_every is not None:
        described = replace(described, log_every=max(1, log_every))
    runs.ensure(described, chosen, folder)
    runs.resume(folder, quiet=True)
    return algorithms.load(folder / "checkpoint.pt")


def generator_of_windows(settings: dict[str, Any], seed: int, folder: Path) -> TrajectoryDiffusion:
    """The diffusion of windows of a study's `length` on its `data`, with its `model` over the
    settings of PGD's preset, fitted in `folder`, where a fit that stopped goes on."""
    base = configs.to_dict(preset_config("pgd", settings["data"]).model) | settings["model"]
    config = configs.from_dict(DiffusionConfig, base | {"length": settings["length"]})
    if not (folder / "config.json").exists():
        fits.create(fits.FitSettings(settings["data"], seed), config, folder)
    fits.resume(folder)
    model = TrajectoryDiffusion(data.load(settings["data"]).spec, config, seed=seed)
    model.load_state_dict(fits.load(folder))
    return model
