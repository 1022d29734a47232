"""Where metrics go beside `metrics.csv`: TensorBoard, Weights & Biases, MLflow, Trackio, or
anything with `write(step, metrics)` and `close()`. Packages are imported where a sink is opened."""

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from mbrl.config import flatten
from mbrl.errors import ConfigError, install_command, unknown_name
from mbrl.files import replacing

PROJECT = "longreach"
TRACKING = "tracking.json"  # of a run's folder: what the trackers call the run, what they have


class Sink(Protocol):
    """Takes metrics while a run trains. `step` is the update, or of a world model's fit the epoch;
    the same step may come several times with different metrics."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Event files in `folder`, opened at the first metric."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.folder))
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """End the file and its thread; the next metric opens a new one."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class WandB:
    """A run of Weights & Biases, of the identity `run`; WANDB_MODE=offline keeps it on this
    machine. Steps are a metric of their own, since those of a model's fit and of the updates each
    begin at 0."""

    def __init__(self, folder: Path, run: str, about: Mapping[str, Any]) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=PROJECT, dir=str(folder), id=run, resume="allow", name=about.get("name"),
            config=dict(about),
        )  # fmt: skip
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, "step": step})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of MLflow, at the tracking address that MLFLOW_TRACKING_URI names."""

    def __init__(self, folder: Path, run: str, about: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient

        self._client: Any = MlflowClient()
        known = self._client.get_experiment_by_name(PROJECT)
        place = known.experiment_id if known else self._client.create_experiment(PROJECT)
        same = self._client.search_runs([place], f"tags.folder_id = '{run}'")
        if same:
            self._run = same[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {"folder_id": run}
        created = self._client.create_run(place, run_name=about.get("name"), tags=tags)
        self._run = created.info.run_id
        for name, value in flatten(about).items():
            self._client.log_param(self._run, name, str(value)[:500])

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._run, [Metric(k, v, now, step) for k, v in metrics.items()])

    def close(self) -> None:
        self._client.set_terminated(self._run)


class Trackio:
    """A run of Trackio, in its folder on this machine (TRACKIO_DIR)."""

    def __init__(self, folder: Path, run: str, about: Mapping[str, Any]) -> None:
        import trackio

        self._run: Any = trackio.init(
            project=PROJECT, name=f"{about.get('name', 'run')}-{run[:8]}", resume="allow",
            config=flatten(about), embed=False,
        )  # fmt: skip

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class Once:
    """A sink that gets no metric of a step twice: a run that was killed and resumed repeats the
    steps since its checkpoint. `last` is what was written, by metric; `save` keeps it."""

    def __init__(self, sink: Sink, last: dict[str, int], save: Callable[[], None]) -> None:
        self.sink, self.last, self.save = sink, last, save

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        new = {k: v for k, v in metrics.items() if step > self.last.get(k, -1)}
        if new:
            self.sink.write(step, new)
            self.last.update(dict.fromkeys(new, step))
            self.save()

    def close(self) -> None:
        self.sink.close()


TRACKERS: dict[str, Callable[[Path, str, Mapping[str, Any]], Sink]] = {
    "wandb": WandB,
    "mlflow": MLflow,
    "trackio": Trackio,
}
SINKS = ("tensorboard", *TRACKERS)


def require(names: Sequence[str]) -> None:
    """Raise `ConfigError` for a sink that does not exist, or whose package is missing."""
    for name in names:
        if name not in SINKS:
            raise unknown_name("sink", name, SINKS)
        if find_spec(name) is None:
            raise ConfigError(f"--sinks {name} needs its package: {install_command(name)}")


def open_trackers(names: Sequence[str], folder: Path, about: Mapping[str, Any]) -> list[Sink]:
    """The trackers among `names` for the run in `folder`, which goes on in them where it was
    before; `about` is its name and settings."""
    require(names)
    file = folder / TRACKING
    state: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}

    def save() -> None:
        with replacing(file) as target:
            target.write(json.dumps(state, indent=2).encode())

    sinks: list[Sink] = []
    for name in (n for n in names if n in TRACKERS):
        known = state.setdefault(name, {"run": uuid.uuid4().hex, "last": {}})
        save()
        sinks.append(Once(TRACKERS[name](folder, known["run"], about), known["last"], save))
    return sinks
