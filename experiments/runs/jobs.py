"""A job is a folder whose config.json says what to do: a training `run`, a world model's `fit`, a
`study`, or a run of a `language` model. Any of them is begun and continued with `resume`."""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments import studies
from experiments.runs import folders
from experiments.runs import language as language_run
from experiments.runs import model_fits as fits
from experiments.runs import training as runs
from mbrl.errors import CheckpointError
from mbrl.records import MetricsFile

SHORT = 500  # what a fit or a study counts in a progress bar that counts updates


def resume(folder: Path, *, quiet: bool = False) -> runs.Result | None:
    """Finish the job in `folder`; a run's result, None for the others."""
    kind = kind_of(folder)
    if kind == "fit":
        fits.resume(folder)
    elif kind == "study":
        studies.resume(folder)
    elif kind == "language":
        language_run.resume(folder, quiet=quiet)
    else:
        return runs.resume(folder, quiet=quiet)
    return None


def kind_of(folder: Path) -> str:
    """`run`, `fit`, `study` or `language`. Raises `CheckpointError` where there is no job."""
    file = folder / "config.json"
    values = folders.read_json(file) if file.is_file() else {}
    for kind in ("run", "fit", "study", "language"):
        if kind in values:
            return kind
    raise CheckpointError(f"{folder} holds no run: there is no config.json of one in it")


def finished(folder: Path) -> bool:
    """Whether nothing is left to do."""
    if not (folder / "result.json").exists() or not (folder / "config.json").exists():
        return False
    if kind_of(folder) != "run":
        return True
    settings, result = _settings(folder), folders.read_json(folder / "result.json")
    chooses = result.get("chooses", settings.get("fqe_steps", 0) > 0)
    chosen = (folder / "selection.json").exists() or not chooses
    return bool(result["step"] >= settings["steps"] and chosen)


def needs(folder: Path) -> list[Path]:
    """The jobs that must be finished before this one: the fit whose model a run uses, what a study
    begins with."""
    kind = kind_of(folder)
    if kind == "study":
        return list(studies.needed(folder).values())
    model = _settings(folder).get("model") if kind == "run" else None
    return [] if model is None else [Path(model)]


def in_order(folders: Iterable[Path]) -> list[Path]:
    """The jobs and all that they need, each after what it needs."""
    ordered: dict[Path, None] = {}
    for folder in folders:
        ordered |= dict.fromkeys([*in_order(needs(folder)), folder])
    return list(ordered)


def seconds(folder: Path) -> float:
    """How long a finished job took, in all its sessions (a language model's run: in its last)."""
    result = folders.read_json(folder / "result.json")
    return float(result.get("seconds", result.get("seconds_of_last_session")))


def size(folder: Path) -> int:
    """How much of a progress bar the job is: the updates of a run."""
    return int(_settings(folder)["steps"]) if kind_of(folder) == "run" else SHORT


def done(folder: Path) -> int:
    """How much of `size` is behind a job that is at work."""
    if kind_of(folder) == "run":
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            return int(MetricsFile(folder / "metrics.csv").rows()[-1]["step"])
    return 0


def _settings(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = folders.read_json(folder / "config.json")["run"]
    return settings
