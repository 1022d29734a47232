"""What a run learns from: logged data, a task, or both."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.runs import folders
from experiments.settings import RunSettings
from mbrl import data, tasks
from mbrl.data.fingerprint import fingerprint
from mbrl.data.readers.compact import is_compact
from mbrl.data.readers.files import MAPPED, SUFFIXES, read_npz, require_file
from mbrl.data.split import hold_out
from mbrl.errors import CheckpointError, ConfigError, TaskError
from mbrl.tasks import Task
from mbrl.types import Dataset, Spec


@dataclass(frozen=True)
class Source:
    """The logged data and the task that a run uses; one of the two may be absent. `logged` are rows
    that a run in a task has from the start."""

    spec: Spec
    dataset: Dataset | None
    task: Task | None
    logged: Dataset | None = None

    def describe(self) -> dict[str, Any]:
        if self.dataset is not None:
            return facts(self.dataset)
        return {"task": self.spec.task} | (
            {} if self.logged is None else {"logged": facts(self.logged)}
        )


def facts(dataset: Dataset) -> dict[str, Any]:
    """What tells one dataset from another."""
    known = dataset.provenance.to_dict()
    return {
        "name": known["card"],
        "version": known["version"],
        "licence": known["licence"],
        "rows": len(dataset),
        "fingerprint": fingerprint(dataset),
    }


def require_same(folder: Path, about: dict[str, Any]) -> None:
    """Raise `CheckpointError` unless `about` describes the data that the run in `folder` learned
    from."""
    known = folders.read_json(folder / "manifest.json")["data"]
    known = {name: known.get(name) for name in about}  # without what it imagined
    if known != about:
        raise CheckpointError(
            f"the data of {folder} has changed: it was {known}, now it is {about}. Put the data "
            "back, or give another folder with --out"
        )


def open_source(settings: RunSettings) -> Source:
    """Load the dataset, or make the task."""
    task: Task | None = None
    if settings.online:
        task = tasks.make(settings.data)
        logged = None if settings.logged is None else data.load(settings.logged)
        return Source(task.spec, None, task, logged)
    dataset = load_data(settings)
    if settings.holdout > 0:
        total = len(dataset.transitions.episodes())
        dataset, held = hold_out(dataset, settings.holdout)
        if len(held.transitions.episodes()) == 1:
            warnings.warn(
                f"--holdout {settings.holdout:g} leaves one of {total} episodes out; intervals of "
                f"`value` and `--until-flat` need two: --holdout {min(2.0 / total, 0.9):.2f}",
                stacklevel=2,
            )
    if tasks.is_task(dataset.spec.task):
        try:
            task = tasks.make_for(dataset.spec)
        except (ConfigError, TaskError) as problem:
            warnings.warn(f"no evaluation in the task of the data: {problem}", stacklevel=2)
    return Source(dataset.spec, dataset, task)


def load_data(settings: RunSettings) -> Dataset:
    """All logged data of a run, held-out episodes among them."""
    return data.load(settings.data, **({"spec": settings.task} if settings.task else {}))


def is_table(name: str) -> bool:
    """Whether `name` is a file whose columns were not read yet: none of this library's formats, no
    dataset's name. Raises `DataError` where there is no such file."""
    path = Path(name).expanduser()
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        return False
    require_file(path)
    return suffix != MAPPED and not (suffix == ".npz" and is_compact(read_npz(path)))
