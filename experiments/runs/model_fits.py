"""A world model fitted once in a folder of its own, for all runs that use the same one: runs on the
same data with the same model config and seed. Such a run ends where one with its own fit does."""

import hashlib
import json
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.runs.job import Clock, Job
from experiments.settings import RunSettings
from mbrl import checkpoint, data
from mbrl import config as configs
from mbrl.agent import resolve_device
from mbrl.callbacks import read
from mbrl.config import Count, CountOrZero, Settings, Share
from mbrl.data.fingerprint import fingerprint
from mbrl.errors import CheckpointError
from mbrl.logged_rules import require_rows
from mbrl.precision import MatmulPrecision, set_matmul_precision
from mbrl.progress import Progress
from mbrl.training import Metrics
from world_models import DiffusionConfig, EnsembleConfig, EnsembleDynamics, TrajectoryDiffusion
from world_models.diagnostics import split_episodes

SAVE_EVERY = 10  # epochs


@dataclass(frozen=True)
class FitSettings(Settings):
    """Everything that decides a fit, except the model's config."""

    data: str  # a dataset or a file
    seed: CountOrZero = 0  # of weights, holdout and batches
    threads: Count = 1  # CPU threads
    # as torch.set_float32_matmul_precision; medium: products of bfloat16 where they are faster
    matmul_precision: MatmulPrecision = "highest"
    test_share: Share = 0.0  # share of the rows, in whole episodes, that the fit never sees
    device: str = "cpu"  # cpu or cuda


ModelConfig = EnsembleConfig | DiffusionConfig
MODELS: dict[str, tuple[Any, Any]] = {  # kind of model: class, config class
    "ensemble": (EnsembleDynamics, EnsembleConfig),
    "diffusion": (TrajectoryDiffusion, DiffusionConfig),
}


def description(settings: FitSettings, config: ModelConfig) -> dict[str, Any]:
    """The content of config.json, without `kind` for an ensemble, without `test_share` for a fit
    to all rows, `matmul_precision` for the highest and `device` for the CPU."""
    values = {"fit": asdict(settings), "config": configs.to_dict(config)}
    if settings.test_share == 0:
        del values["fit"]["test_share"]
    if settings.matmul_precision == "highest":
        del values["fit"]["matmul_precision"]
    if settings.device == "cpu":
        del values["fit"]["device"]
    return values if isinstance(config, EnsembleConfig) else values | {"kind": "diffusion"}


def ensure(settings: FitSettings, config: ModelConfig, folder: Path) -> None:
    """Describe the fit in `folder`, unless one is described there."""
    job = ModelFit(folder)
    if not job.described:
        job.describe(description(settings, config))


def shared(settings: FitSettings, config: ModelConfig, data_fingerprint: str, home: Path) -> Path:
    """The folder under `home` of the fit that all such runs share, described there if it is not
    yet."""
    values = description(settings, config)
    parts = [values["fit"], values["config"], data_fingerprint]
    if "kind" in values:
        parts.append(values["kind"])
    text = json.dumps(parts, sort_keys=True)
    name = f"{settings.data.replace('/', '-')}-{settings.seed}"
    folder = (home / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}").resolve()
    ensure(settings, config, folder)
    return folder


def for_run(settings: FitSettings, config: Any, data_fingerprint: str, home: Path) -> Path | None:
    """`shared`, for a run with that config; None if it fits no model."""
    imagination = getattr(config, "imagination", None)
    if not hasattr(config, "model") or getattr(imagination, "truth", 0.0) >= 1:
        return None
    return shared(settings, config.model, data_fingerprint, home)


class ModelFit(Job):
    """The fit of a world model to a dataset."""

    kind, title = "fit", "fit of a world model"

    def work(self, quiet: bool, clock: Clock) -> dict[str, Any]:
        values = self.read()
        settings = configs.from_dict(FitSettings, values["fit"])
        torch.set_num_threads(settings.threads)
        set_matmul_precision(settings.matmul_precision)
        dataset = data.load(settings.data)
        require_rows(dataset, self, "`model fit`")
        cls, config_class = MODELS[values.get("kind", "ensemble")]
        config = configs.from_dict(config_class, values["config"])
        place = resolve_device(settings.device)
        model = cls(dataset.spec, config, device=place, seed=settings.seed)
        origin = {
            "fingerprint": fingerprint(dataset),
            "spec": configs.plain(dataset.spec.to_dict()),
        }
        path = self.folder / "model.pt"
        if path.exists():
            content = checkpoint.load(path)
            if content["description"]["fingerprint"] != origin["fingerprint"]:
                raise CheckpointError(f"the data of {self.folder} has changed since its fit began")
            model.load_state_dict(content["model"])

        def save() -> None:
            content = {"description": values | origin, "model": model.state_dict()}
            checkpoint.save(path, content)

        if not model.fitted:
            rows = dataset.transitions
            if settings.test_share > 0:
                rows, _ = split_episodes(rows, settings.test_share, settings.seed)
            bar = None if quiet else Progress(getattr(config, "max_epochs", 1))
            model.fit(rows, _saving(save, bar))
            if bar is not None:
                bar.close()
        save()
        if not isinstance(model, EnsembleDynamics):
            return {}
        assert model.holdout_mse is not None
        return {"holdout_mse": [float(e) for e in model.holdout_mse]}


def _saving(save: Callable[[], None], bar: Progress | None) -> Callable[[Metrics], None]:
    """Shows the progress of a fit and saves it every few epochs."""

    def on_progress(metrics: Metrics) -> None:
        if bar is not None:
            bar.epoch(metrics)
        if int(read(metrics)["model/epoch"]) % SAVE_EVERY == 0:
            save()

    return on_progress


def load(folder: Path) -> dict[str, Any]:
    """State of the finished model in `folder`. Raises `CheckpointError` if it is not finished."""
    if not (folder / "result.json").exists():
        raise CheckpointError(
            f"the world model in {folder} is not fitted; finish it with `python -m experiments "
            f"resume {shlex.quote(str(folder))}`"
        )
    state: dict[str, Any] = checkpoint.load(folder / "model.pt")["model"]
    return state


def require_match(folder: Path, settings: RunSettings, config: Any) -> None:
    """Raise `CheckpointError` unless the fit in `folder` is the one that the run would make, on
    whichever device."""
    values = ModelFit(folder).read()
    values["fit"].pop("device", None)
    fit = FitSettings(settings.data, settings.seed, settings.threads, settings.matmul_precision)
    wanted = description(fit, config.model)
    if values != wanted:
        raise CheckpointError(
            f"the world model in {folder} is of other data, seed, threads, precision or config; "
            f"the run needs {wanted}, the folder has {values}"
        )
