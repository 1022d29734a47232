"""Cells of studies: calls of a study's function with settings and a seed, each in a folder."""

from pathlib import Path
from typing import Any

import torch

from experiments import studies
from experiments.runs import folders
from experiments.runs.job import Clock, Job
from mbrl import data
from mbrl.data.fingerprint import fingerprint
from mbrl.precision import MatmulPrecision, set_matmul_precision


def create(
    name: str,
    settings: dict[str, Any],
    seed: int,
    folder: Path,
    home: Path | None = None,
    *,
    matmul_precision: MatmulPrecision = "highest",
) -> None:
    """Describe a cell in a new folder, ready for `resume`, and the jobs that it shares with others
    under `home`."""
    settings = studies.settings_of(name, settings)
    values = {"study": name, "settings": settings, "seed": seed, "threads": 1}
    values["matmul_precision"] = matmul_precision
    needs = getattr(studies.module(name), "needs", None)
    if needs is not None and home is not None:
        values["needs"] = {k: str(v) for k, v in needs(settings, seed, home).items()}
    StudyCell(folder).describe(values)


def shared_jobs(folder: Path) -> dict[str, Path]:
    """The shared jobs that the cell in `folder` needs, by name."""
    needs = folders.description(folder).get("needs", {})
    return {name: Path(job) for name, job in needs.items()}


def place(folder: Path, name: str) -> Path:
    """The folder of a part of the cell in `folder`: that of the shared job, else its own."""
    return shared_jobs(folder).get(name, folder / name)


class StudyCell(Job):
    """A measurement of a study."""

    kind, title = "study", "measurement of a study"

    def needs(self) -> list[Path]:
        return list(shared_jobs(self.folder).values())

    def work(self, quiet: bool, clock: Clock) -> dict[str, Any]:
        values = self.read()
        torch.set_num_threads(values["threads"])
        precision = values.get("matmul_precision", "highest")  # not in the oldest folders
        set_matmul_precision(precision)
        study, settings = studies.module(values["study"]), values["settings"]
        facts = {
            "study": {"name": values["study"], "version": study.VERSION},
            "data": self._data(settings.get("data")),
            "seed": values["seed"],
            "threads": values["threads"],
            "matmul_precision": precision,
        }
        self.manifest(facts, settings.get("device", "cpu"))
        outcome: studies.Outcome = study.measure(settings, values["seed"], self.folder)
        return {"values": outcome.values, "curves": outcome.curves}

    def _data(self, name: str | None) -> dict[str, Any] | None:
        """Name, rows and fingerprint of the dataset that the study is about; None for others."""
        if name is None:
            return None
        dataset = data.load(name)
        return {"name": name, "rows": len(dataset), "fingerprint": fingerprint(dataset)}
