"""The kinds of jobs, and functions of job folders of any kind."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.runs import folders
from experiments.runs.job import Job
from experiments.runs.language import LanguageRun
from experiments.runs.model_fits import ModelFit
from experiments.runs.study import StudyCell
from experiments.runs.training import TrainingRun
from mbrl.errors import CheckpointError

KINDS: tuple[type[Job], ...] = (TrainingRun, ModelFit, StudyCell, LanguageRun)


def job_in(folder: Path) -> Job:
    """The job in `folder`. Raises `CheckpointError` where there is none."""
    values = folders.description(folder)
    for cls in KINDS:
        if cls.kind in values:
            return cls(folder)
    why = "its config.json is of another kind" if values else "it has no config.json"
    raise CheckpointError(f"{folder} holds no run: {why}")


def resume(folder: Path, *, quiet: bool = False) -> dict[str, Any]:
    """Begin or continue the job in `folder`; the content of its result.json."""
    return job_in(folder).resume(quiet=quiet)


def finished(folder: Path) -> bool:
    return (folder / "config.json").is_file() and job_in(folder).finished()


def in_order(jobs: Iterable[Path]) -> list[Path]:
    """The jobs and all that they need, each after what it needs."""
    ordered: dict[Path, None] = {}
    for folder in jobs:
        ordered |= dict.fromkeys([*in_order(job_in(folder).needs()), folder])
    return list(ordered)


def seconds(folder: Path) -> float:
    """Duration of a finished job in all its sessions; of a language model's run from an earlier
    version, in its last session."""
    result = folders.read_json(folder / "result.json")
    return float(result["seconds" if "seconds" in result else "seconds_of_last_session"])
