"""Jobs that studies start from: training runs and fitted generators of windows."""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import algorithms
from experiments.runs import model_fits as fits
from experiments.runs import training as runs
from experiments.settings import RunSettings, build_config, merge, preset, preset_config
from mbrl import config as configs
from mbrl import data
from mbrl.data.fingerprint import fingerprint
from mbrl.types import Spec
from world_models import DiffusionConfig, EnsembleConfig, EnsembleDynamics, TrajectoryDiffusion

# Settings of every study that starts from a run, beside its `data` and `algorithm`.
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
    settings: dict[str, Any], chosen: Any, seed: int, folder: Path, log_every: int = 100
) -> Any:
    """The agent that a study's `algorithm`, `data`, `steps` and `episodes` (of the last evaluation)
    describe, trained with the config `chosen` in `folder`, from its checkpoint if there is one."""
    runs.ensure(_run_settings(settings, seed, log_every), chosen, folder)
    runs.TrainingRun(folder).finish()
    return algorithms.load(folder / "checkpoint.pt")


def shared_run(
    settings: dict[str, Any], chosen: Any, seed: int, home: Path, log_every: int = 100
) -> Path:
    """The folder under `home` of the run of `agent`, which cells share, as well as the fit of its
    world model. Both are described there if they are missing."""
    run = _run_settings(settings, seed, log_every)
    data_fingerprint = fingerprint(data.load(run.data))
    fit = fits.for_run(fits.FitSettings(run.data, seed), chosen, data_fingerprint, home / "fits")
    version = algorithms.ALGORITHMS[run.algorithm][0].version
    parts = [asdict(run), version, configs.to_dict(chosen), data_fingerprint]
    name = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]
    folder = home / "trainings" / f"{run.algorithm}-{data_fingerprint[:10]}-{seed}-{name}"
    model = None if fit is None else str(fit)
    runs.ensure(replace(run, model=model), chosen, folder.resolve())
    return folder.resolve()


def shared_fit(settings: dict[str, Any], config: fits.ModelConfig, seed: int, home: Path) -> Path:
    """The folder under `home` of the world model of that config fitted to the study's `data`."""
    data_fingerprint = fingerprint(data.load(settings["data"]))
    return fits.shared(
        fits.FitSettings(settings["data"], seed), config, data_fingerprint, home / "fits"
    )


def _run_settings(settings: dict[str, Any], seed: int, log_every: int) -> RunSettings:
    return RunSettings(
        settings["algorithm"],
        settings["data"],
        steps=settings["steps"],
        seed=seed,
        final_episodes=settings["episodes"],
        log_every=max(1, min(log_every, settings["steps"] // 20)),
        tensorboard=False,
    )


def windows_config(settings: dict[str, Any]) -> DiffusionConfig:
    """The diffusion of windows of a study's `length` on its `data`, with its `model` over the
    settings of PGD's preset."""
    base = configs.to_dict(preset_config("pgd", settings["data"]).model) | settings["model"]
    return configs.from_dict(DiffusionConfig, base | {"length": settings["length"]})


def generator_of_windows(settings: dict[str, Any], seed: int, folder: Path) -> TrajectoryDiffusion:
    """The generator of `windows_config`, fitted in `folder`, from its checkpoint if there is
    one."""
    config = windows_config(settings)
    fits.ensure(fits.FitSettings(settings["data"], seed), config, folder)
    fits.ModelFit(folder).finish()
    model = TrajectoryDiffusion(data.load(settings["data"]).spec, config, seed=seed)
    model.load_state_dict(fits.load(folder))
    return model


def ensemble_of_part(
    spec: Spec, settings: dict[str, Any], seed: int, folder: Path, termination: Any
) -> EnsembleDynamics:
    """The ensemble of MOPO's preset for a study's `data`, with its `model` over the settings of the
    preset, fitted in `folder` to all but a `test_share`, from its checkpoint if there is one;
    `termination` says where its episodes end."""
    values = configs.to_dict(preset_config("mopo", settings["data"]).model)
    config = configs.from_dict(EnsembleConfig, merge(values, settings["model"]))
    chosen = fits.FitSettings(settings["data"], seed, test_share=settings["test_share"])
    fits.ensure(chosen, config, folder)
    fits.ModelFit(folder).finish()
    model = EnsembleDynamics(spec, config, termination=termination, seed=seed)
    model.load_state_dict(fits.load(folder))
    return model
