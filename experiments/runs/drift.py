"""New data against those that a run was trained on."""

from pathlib import Path
from typing import Any

from experiments.runs.export import training_data
from experiments.runs.sources import is_table
from experiments.runs.training import TrainingRun
from mbrl import data
from mbrl.data.drift import Drift, compare
from mbrl.data.out_of_data import fit_out_of_data
from mbrl.data.shared_encoding import SharedLog, compare_logs, read_as
from mbrl.errors import CheckpointError, ConfigError, DataError
from mbrl.types import Dataset


def reference_of(folder: Path) -> Dataset:
    """The data that the run in `folder` learned from. Raises `CheckpointError` for a folder without
    a run, and `ConfigError` for a run without logged data."""
    run = TrainingRun(folder)
    if not run.described or not (folder / "manifest.json").exists():
        raise CheckpointError(f"{folder} holds no run; give the folder of one with --against")
    reference = training_data(run)
    if reference is None:
        raise ConfigError(
            f"{folder} learned in the task {run.settings.data}; there are no logged data to "
            "compare with"
        )
    return reference


def read_new(name: str, reference: Dataset, options: dict[str, Any]) -> Dataset | SharedLog:
    """The data called `name`, or in the file `name`: a table is read as the log of the run was,
    where that was a log. Raises `ConfigError` for options that would read it in another way, and
    for columns in other units."""
    known = reference.provenance.log
    if known is None or not is_table(name):
        new = data.load(name, **({"spec": reference.spec} | options))
        compare_logs(known or {}, new.provenance.log or {}, name)
        return new
    if options:
        raise ConfigError(
            f"{name} is read as the log of the run was; leave out --{', --'.join(options)}"
        )
    return read_as(Path(name).expanduser(), known)


def drift_of(name: str, reference: Dataset, options: dict[str, Any]) -> Drift:
    """Compare the data called `name` with `reference`. Raises `DataError` where they cannot be
    used."""
    new = read_new(name, reference, options)
    if len(new.dataset if isinstance(new, SharedLog) else new) == 0:
        raise DataError(f"{name} has no rows")
    return compare(reference, new, fit_out_of_data(reference))
