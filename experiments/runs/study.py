"""One cell of a study: a call of its function with settings and a seed, in a folder of its own."""

from pathlib import Path
from typing import Any

import torch

from experiments import studies
from experiments.runs import folders
from experiments.runs.job import Clock, Job


def create(
    name: str, settings: dict[str, Any], seed: int, folder: Path, home: Path | None = None
) -> None:
    """Describe the call in a new folder, ready for `resume`; what it shares with others is under
    `home`."""
    settings = studies.settings_of(name, settings)
    values = {"study": name, "settings": settings, "seed": seed, "threads": 1}
    needs = getattr(studies.module(name), "needs", None)
    if needs is not None and home is not None:
        values["needs"] = {k: str(v) for k, v in needs(settings, seed, home).items()}
    StudyCell(folder).describe(values)


def shared_jobs(folder: Path) -> dict[str, Path]:
    """The jobs that the cell in `folder` shares with others and begins with, by name."""
    needs = folders.description(folder).get("needs", {})
    return {name: Path(job) for name, job in needs.items()}


def place(folder: Path, name: str) -> Path:
    """Where a part of the cell in `folder` is: the job that it shares, else a folder of its own."""
    return shared_jobs(folder).get(name, folder / name)


class StudyCell(Job):
    """A measurement of a study."""

    kind, title = "study", "measurement of a study"

    def needs(self) -> list[Path]:
        return list(shared_jobs(self.folder).values())

    def work(self, quiet: bool, clock: Clock) -> dict[str, Any]:
        values = self.read()
        torch.set_num_threads(values["threads"])
        study = studies.module(values["study"])
        outcome: studies.Outcome = study.measure(values["settings"], values["seed"], self.folder)
        return {"values": outcome.values, "curves": outcome.curves}
