"""A world model fitted once in a folder of its own, for all runs that use the same one: runs on the
same data with the same model config and seed. Such a run ends where one with its own fit does."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.runs import folders
from experiments.settings import RunSettings
from mbrl import checkpoint, data
from mbrl import config as configs
from mbrl.callbacks import read
from mbrl.data.fingerprint import fingerprint
from mbrl.errors import CheckpointError
from mbrl.training import Metrics
from world_models import DiffusionConfig, EnsembleConfig, EnsembleDynamics, TrajectoryDiffusion


@dataclass(frozen=True)
class FitSettings:
    """Everything that decides a fit, except the model's config."""

    data: str  # a dataset or a file
    seed: int = 0  # of weights, holdout and batches
    threads: int = 1  # CPU threads


ModelConfig = EnsembleConfig | DiffusionConfig
MODELS: dict[str, tuple[Any, Any]] = {  # kind of model: class, config class
    "ensemble": (EnsembleDynamics, EnsembleConfig),
    "diffusion": (TrajectoryDiffusion, DiffusionConfig),
}


def described(settings: FitSettings, config: ModelConfig) -> dict[str, Any]:
    """What `config.json` of a fit's folder says; an ensemble's has no kind."""
    values = {"fit": asdict(settings), "config": configs.to_dict(config)}
    return values if isinstance(config, EnsembleConfig) else values | {"kind": "diffusion"}


def create(settings: FitSettings, config: ModelConfig, folder: Path) -> None:
    """Describe the fit in a new folder, ready for `resume`."""
    values = described(settings, config)
    cls, _ = MODELS[values.get("kind", "ensemble")]
    cls(data.load(settings.data).spec, config)  # refuses what cannot be
    folder.mkdir(parents=True, exist_ok=True)
    folders.write_json(folder / "config.json", values)


def shared(settings: FitSettings, config: ModelConfig, data_mark: str, home: Path) -> Path:
    """The folder under `home` of the fit that all such runs share, made if it is not there;
    `data_mark` is the fingerprint of the data."""
    parts = [asdict(settings), configs.to_dict(config), data_mark]
    if not isinstance(config, EnsembleConfig):
        parts.append("diffusion")
    text = json.dumps(parts, sort_keys=True)
    name = f"{settings.data.replace('/', '-')}-{settings.seed}"
    folder = (home / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}").resolve()
    if not (folder / "config.json").exists():
        create(settings, config, folder)
    return folder


def for_run(settings: FitSettings, config: Any, data_mark: str, home: Path) -> Path | None:
    """`shared`, for a run with that config; None if it fits no model."""
    imagination = getattr(config, "imagination", None)
    if not hasattr(config, "model") or getattr(imagination, "truth", 0.0) >= 1:
        return None
    return shared(settings, config.model, data_mark, home)


def resume(folder: Path) -> None:
    """Fit the model described in `folder`, or continue the fit."""
    with folders.locked(folder):
        _resume(folder)


def _resume(folder: Path) -> None:
    began = time.perf_counter()
    values = folders.read_json(folder / "config.json")
    settings = configs.from_dict(FitSettings, values["fit"])
    torch.set_num_threads(settings.threads)
    dataset = data.load(settings.data)
    cls, config_class = MODELS[values.get("kind", "ensemble")]
    config = configs.from_dict(config_class, values["config"])
    model = cls(dataset.spec, config, seed=settings.seed)
    known = values | {"fingerprint": fingerprint(dataset)}
    path, before = folder / "model.pt", 0.0
    if path.exists():
        content = checkpoint.load(path)
        if content["description"] != known:
            raise CheckpointError(f"the data of {folder} has changed since its fit was begun")
        model.load_state_dict(content["model"])
        before = content["seconds"]

    def save() -> None:
        seconds = before + time.perf_counter() - began
        content = {"description": known, "model": model.state_dict(), "seconds": seconds}
        checkpoint.save(path, content)

    if not model.fitted:
        model.fit(dataset.transitions, saving(lambda metrics: None, save))
    save()
    result: dict[str, Any] = {"seconds": round(before + time.perf_counter() - began, 2)}
    if isinstance(model, EnsembleDynamics):
        assert model.holdout_mse is not None
        result["holdout_mse"] = [float(e) for e in model.holdout_mse]
    folders.write_json(folder / "result.json", result)


def saving(show: Callable[[Metrics], None], save: Callable[[], None], every: int = 10) -> Callable:
    """Progress of a fit that also saves every `every` epochs."""

    def on_progress(metrics: Metrics) -> None:
        show(metrics)
        if int(read(metrics)["model/epoch"]) % every == 0:
            save()

    return on_progress


def load(folder: Path) -> dict[str, Any]:
    """State of the finished model in `folder`. Raises `CheckpointError` if it is not finished."""
    if not (folder / "result.json").exists():
        raise CheckpointError(
            f"the world model in {folder} is not fitted; finish it with `python -m experiments "
            f"resume {folder}`"
        )
    state: dict[str, Any] = checkpoint.load(folder / "model.pt")["model"]
    return state


def require_match(folder: Path, settings: RunSettings, config: Any) -> None:
    """Raise `CheckpointError` unless the fit in `folder` is the one that the run would make."""
    values = folders.read_json(folder / "config.json")
    wanted = described(FitSettings(settings.data, settings.seed, settings.threads), config.model)
    if values != wanted:
        raise CheckpointError(
            f"the world model in {folder} is of other data, seed, threads or config; the run needs "
            f"{wanted}, the folder has {values}"
        )
