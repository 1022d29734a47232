"""The verb `plot`: curves of several runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments.cli import _positional as positional
from experiments.reports import figures
from experiments.reports.figures import Curve
from experiments.reports.page_parts import single_run
from experiments.runs import history
from experiments.runs.folders import DIVERGED, read_json
from experiments.runs.training import TrainingRun
from mbrl.config import flatten
from mbrl.errors import CheckpointError, ConfigError, unknown_name

# Settings of a run that say how it is watched, and those that differ from seed to seed.
LOOKS = {
    *("seed", "algorithm", "data", "steps", "threads", "device", "fqe_steps"),
    *("eval_every", "eval_episodes", "final_episodes", "log_every", "checkpoint_every"),
    *("checkpoint_seconds", "tensorboard", "sinks", "callback", "model", "after"),
}


@dataclass(frozen=True)
class Plot:
    """Draw curves of runs, with a panel for each dataset and a line for each algorithm with the
    settings in which its runs differ: the mean over seeds with its 95 % interval."""

    folders: positional.Folders  # run folders
    metric: str = "score"  # score, or a column of metrics.csv such as critic/q_mean
    out: Path = Path("plot.png")  # the figure; its data go beside it as CSV

    def main(self) -> int:
        if not self.folders:
            raise CheckpointError("name at least one run folder, such as runs/ravl/pendulum/seed-0")
        for folder in self.folders:
            if sum(other.resolve() == folder.resolve() for other in self.folders) > 1:
                raise CheckpointError(
                    f"{folder} is named more than once, and would count as several seeds; name "
                    "every run once"
                )
        if self.out.suffix not in (".png", ".pdf", ".svg"):
            raise ConfigError(
                f"--out {self.out}: name a picture, .png, .pdf or .svg; its data go beside it as "
                ".csv"
            )
        names = lines_of(self.folders)
        _require_one_content(self.folders)
        seeds: dict[tuple[str, str, int], Path] = {}
        panels: dict[str, dict[str, list[tuple[np.ndarray, np.ndarray]]]] = {}
        for folder in self.folders:
            run = TrainingRun(folder).settings
            first = seeds.setdefault((run.data, names[folder], run.seed), folder)
            if first != folder:
                raise CheckpointError(
                    f"{first} and {folder} have the same settings and seed {run.seed}, and would "
                    "count as several seeds; name one of them"
                )
            line = self._values(folder)
            panels.setdefault(run.data, {}).setdefault(names[folder], []).append(line)
        curves = {
            data: {name: _joined(lines) for name, lines in algorithms.items()}
            for data, algorithms in panels.items()
        }
        label = self._label()
        self.out.parent.mkdir(parents=True, exist_ok=True)
        online = {TrainingRun(folder).settings.online for folder in self.folders}
        unit = " or ".join("steps" if acts else "updates" for acts in sorted(online))
        figures.curves(curves, unit, label, self.out)
        print(f"wrote {self.out} and {self.out.with_suffix('.csv')}")
        return 0

    def _label(self) -> str:
        """What the figure shows: scores only where every run has reference returns."""
        if self.metric != "score":
            return self.metric
        kinds = {"score" if history.scores(f)[2] else "return" for f in self.folders}
        return " or ".join(sorted(kinds, reverse=True))

    def _values(self, folder: Path) -> tuple[np.ndarray, np.ndarray]:
        if self.metric == "score":
            steps, values, _ = history.scores(folder)
            if not len(steps):
                raise CheckpointError(f"{folder} holds no evaluation{_why(folder)}")
            return steps, values
        known = history.metrics(folder)
        if self.metric not in known:
            raise unknown_name(f"metric in {folder}", self.metric, ["score", *known])
        return known[self.metric]


def _why(folder: Path) -> str:
    """Why a run has no evaluation, and what to do."""
    if (folder / DIVERGED).exists():
        return ": its training diverged"
    if not TrainingRun(folder).finished():
        return " yet; resume the run first"
    names = ", ".join([*history.metrics(folder)][:5]) or "(none was logged in so short a run)"
    return (
        ": it was to have none, or its data belong to no task; draw one of its metrics, --metric "
        f"NAME: {names}"
    )


def lines_of(folders: Sequence[Path]) -> dict[Path, str]:
    """The name of each run's line: its algorithm, and those settings in which the runs of the
    algorithm differ. Runs of one name differ in their seeds alone, or in what is only looked at."""
    configs = {}
    for folder in folders:
        run = TrainingRun(folder)
        content = run.read()
        configs[folder] = (run.settings.algorithm, _learned(content) | _before(run))
    names = {}
    for folder, (algorithm, config) in configs.items():
        others = [other for kind, other in configs.values() if kind == algorithm]
        keys = sorted({key for other in others for key in other})
        differing = [k for k in keys if any(other.get(k) != config.get(k) for other in others)]
        parts = [f"{key}={config.get(key)}" for key in differing]
        names[folder] = " ".join([algorithm, *parts])
    return names


def _learned(content: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run's description that decide what is learned."""
    run = {k: v for k, v in flatten(content["run"]).items() if k not in LOOKS}
    return run | flatten(content["config"])


def _before(run: TrainingRun) -> dict[str, Any]:
    """Of the run that this one goes on from, what it learned from and how; its folder's name where
    it is no longer there, since seeds have folders of their own."""
    if run.settings.after is None:
        return {}
    before = TrainingRun(Path(run.settings.after))
    if not before.described:
        return {"after": run.settings.after}
    content, known = before.read(), before.settings
    about = {"algorithm": known.algorithm, "data": known.data, "steps": known.steps}
    return {f"after.{k}": v for k, v in (about | _learned(content) | _before(before)).items()}


def _require_one_content(folders: Sequence[Path]) -> None:
    """Raise `CheckpointError` where runs on data of one name learned from different rows."""
    first: dict[str, tuple[Path, str]] = {}
    for folder in folders:
        file = folder / "manifest.json"
        about = (read_json(file) if file.is_file() else {}).get("data") or {}
        run = TrainingRun(folder).settings
        if "fingerprint" not in about or run.holdout > 0:  # other rows for each seed
            continue
        other, known = first.setdefault(run.data, (folder, about["fingerprint"]))
        if known != about["fingerprint"]:
            raise CheckpointError(
                f"{other} and {folder} learned from different contents of {run.data}, so that "
                "they are no seeds of one line; plot them one by one"
            )


def _joined(lines: list[tuple[np.ndarray, np.ndarray]]) -> Curve:
    """One curve of several runs, over the steps that all of them have."""
    steps = lines[0][0]
    for x, _ in lines[1:]:
        steps = np.intersect1d(steps, x)
    if not len(steps):
        raise CheckpointError("runs of one line have no step in common; plot them one by one")
    values = np.array([y[np.isin(x, steps)] for x, y in lines])
    return figures.curve(steps, values) if len(lines) > 1 else single_run(steps, values[0])


def main(arguments: list[str]) -> int:
    return tyro.cli(Plot, args=arguments, prog="python -m experiments plot").main()
