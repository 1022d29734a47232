"""The export of a run's policy, with what its folder knows about it."""

from pathlib import Path
from typing import Any, Literal

from experiments.export.agent import export
from experiments.runs import folders, selection, valuation
from experiments.runs.sources import open_source, require_same
from experiments.runs.training import TrainingRun
from mbrl.errors import CheckpointError
from mbrl.types import Dataset

FOLDER = "export"


def export_run(
    folder: Path,
    out: Path | None = None,
    *,
    step: str = "last",
    fallback: str | None = None,
    precision: Literal["float32", "float64"] = "float32",
) -> dict[str, Any]:
    """Export the policy of `step` ("last", "chosen", or a number that was kept) of the run in
    `folder` to `out` (by default `export` in it); the card."""
    run = TrainingRun(folder)
    if not run.described or not (folder / "checkpoint.pt").exists():
        raise CheckpointError(f"{folder} holds no run with a checkpoint; give a run's folder")
    dataset = training_data(run)
    agent = selection.agent_at(folder, step)
    manifest = folders.read_json(folder / "manifest.json")
    known = {
        "name": str(folder),
        "trained_with": {k: manifest.get(k) for k in ("longreach", "commit", "python", "packages")},
        "value": _value(folder, agent.step),
    }
    return export(
        agent, out or folder / FOLDER, dataset, fallback=fallback, precision=precision, run=known,
    )  # fmt: skip


def training_data(run: TrainingRun) -> Dataset | None:
    """The logged data that a run learned from, None where it learned in a task: what it met there
    is not logged. Raises `CheckpointError` where they are not those that it was trained on."""
    settings = run.settings
    if settings.online:
        return None
    source = open_source(settings)
    require_same(run.folder, source.describe())
    return source.dataset


def _value(folder: Path, step: int) -> dict[str, Any] | None:
    """What `value` wrote about the policy of `step`; a note where it was about another one."""
    file = folder / valuation.FILE
    if not file.exists():
        return None
    content = folders.read_json(file)
    if content["step"] != step:
        note = f"`value` was run for the policy of update {content['step']}, not for this one."
        return {"note": note}
    names = ("verdict", "estimates", "logged", "episodes", "rows", "where", "confidence", "gamma")
    return {name: content[name] for name in names}
