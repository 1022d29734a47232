"""The valuation of a run's policy on logged episodes, kept in its folder for the report."""

import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from algorithms.evaluation.valuation import Valuation, ValuationConfig, value_policy
from algorithms.evaluation.verdict import Verdict, verdict
from experiments.runs import folders, selection
from experiments.runs.sources import facts, is_table, load_data, require_same
from experiments.runs.training import TrainingRun
from experiments.settings import RunSettings
from mbrl import data
from mbrl.data.shared_encoding import compare_logs, read_as
from mbrl.data.split import hold_out
from mbrl.errors import ConfigError, DataError
from mbrl.training import Metrics
from mbrl.types import Dataset

FILE = "valuation.json"


def episodes_for(run: TrainingRun, name: str | None) -> tuple[Dataset, str]:
    """The episodes to value a run's policy on, and a sentence about them: those of `name`, else
    those that the run held out, else, for want of others, those it learned from. Raises
    `CheckpointError` where the run's own data have changed, and as `_others` does."""
    settings = run.settings
    if name is not None:
        return _others(settings, name), f"episodes of {name}"
    if settings.online:
        raise ConfigError(
            f"{run.folder} learned in the task {settings.data}; name logged episodes with --data"
        )
    dataset = load_data(settings)
    if settings.holdout > 0:
        learned, held = hold_out(dataset, settings.holdout)
        require_same(run.folder, facts(learned))
        return held, "episodes held out from the run"
    require_same(run.folder, facts(dataset))
    return dataset, (
        "the episodes that the run learned from, which flatter its policy; train with --holdout "
        "0.2 to value it on others"
    )


def _others(settings: RunSettings, name: str) -> Dataset:
    """The episodes of `name`, a table being read as the log of the run was. Raises `DataError` for
    a table with rows that the run's log has no place for, and `ConfigError` for other units."""
    if not is_table(name):
        dataset = data.load(name)
        if dataset.provenance.log is not None:
            compare_logs(_log_of(settings, name), dataset.provenance.log, name)
        return dataset
    known = _log_of(settings, name)
    if not known:
        return data.load(name)
    log = read_as(Path(name).expanduser(), known)
    if log.unfit:
        new = [f"{column}: {', '.join(labels)}" for column, labels in log.new_labels.items()]
        raise DataError(
            f"{log.unfit} rows of {name} have labels that the log of the run did not have, or miss "
            f"values that it never missed ({'; '.join(new) or 'missing values'}); leave the "
            "episodes of these rows out"
        )
    return log.dataset


def _log_of(settings: RunSettings, name: str) -> dict[str, Any]:
    """How the log of the run was read; empty where it learned from none."""
    try:
        return {} if settings.online else load_data(settings).provenance.log or {}
    except DataError as problem:
        warnings.warn(
            f"whether {name} was read as the data of the run is not known, since those cannot be "
            f"read: {problem}",
            stacklevel=2,
        )
        return {}


def value_run(
    folder: Path,
    config: ValuationConfig,
    *,
    step: str = "last",
    name: str | None = None,
    on_progress: Callable[[str, Metrics], None] | None = None,
) -> dict[str, Any]:
    """Value the policy of `step` ("last", "chosen", or a number that was kept) and write what came
    out to valuation.json in the run's folder; the content."""
    run = TrainingRun(folder)
    agent = selection.agent_at(folder, step)
    dataset, where = episodes_for(run, name)
    valuation = value_policy(agent, dataset, config, on_progress=on_progress)
    content = described(valuation, verdict(valuation)) | {"step": agent.step, "where": where}
    content |= {"updates": config.steps, "confidence": config.confidence}
    folders.write_json(folder / FILE, content)
    return content


def described(valuation: Valuation, judged: Verdict) -> dict[str, Any]:
    """Plain values; without the distance of every row."""
    content = asdict(valuation)
    distances = content["support"].pop("distances")
    content["support"]["median_distance"] = float(sorted(distances)[len(distances) // 2])
    return content | {"verdict": asdict(judged)}
