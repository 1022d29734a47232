"""The verbs `report` and `plot`: one page about a run, and curves of several runs."""

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments import figures, folders, history, jobs, language_report
from experiments.figures import Curve
from experiments.report_parts import facts, image, losses, plain, write_page
from mbrl.errors import CheckpointError, unknown_name
from mbrl.records import Evaluations

# Panels of the report's second figure, where a run logged them.
WATCHED = (
    *("critic/loss", "critic/q_mean", "actor/entropy", "actor/alpha", "actor/loss", "loss"),
    *("policy/entropy", "policy/log_ratio", "policy/effective_samples"),
)


@dataclass(frozen=True)
class Report:
    """Write report.html about a run into its folder: scores, losses, reach and values, settings."""

    folders: tyro.conf.Positional[tuple[Path, ...]]  # run folders

    def main(self) -> int:
        if not self.folders:
            raise CheckpointError("name at least one run folder, such as runs/ravl/pendulum/seed-0")
        language = {folder: jobs.kind_of(folder) == "language" for folder in self.folders}
        for folder in self.folders:
            if not language[folder]:
                history.settings(folder)
        for folder in self.folders:
            page = language_report.write(folder) if language[folder] else write(folder)
            print(f"wrote {page}")
        return 0


def write(folder: Path) -> Path:
    """The page of a run, with its figures beside it."""
    run = history.settings(folder)
    title = f"{run.algorithm} on {run.data}, seed {run.seed}"
    parts = [
        facts(_summary(folder)),
        *_scores(folder),
        *losses(folder, WATCHED),
        *_danger(folder),
    ]
    return write_page(folder, title, parts)


def _summary(folder: Path) -> dict[str, Any]:
    run, manifest = history.settings(folder), folders.read_json(folder / "manifest.json")
    facts: dict[str, Any] = {"updates": run.steps}
    if "rows" in manifest["data"]:
        facts["transitions"] = manifest["data"]["rows"]
    steps, score, normalised = history.scores(folder)
    if len(steps):
        returns = Evaluations.load(folder / "evaluations.npz").returns[-1]
        text = f"return {returns.mean():.1f} ± {returns.std():.1f} over {len(returns)} starts"
        if normalised:
            text = f"score {score[-1]:.1f}, {text}"
        facts["last evaluation"] = f"{text}, at update {steps[-1]}"
        facts["best evaluation"] = f"{score.max():.1f}, at update {steps[score.argmax()]}"
    if not (folder / "result.json").exists():
        facts["state"] = "not finished"
    elif (folder / "selection.json").exists():
        chosen = folders.read_json(folder / "selection.json")["chosen"]
        facts["chosen offline"] = f"the policy of update {chosen}"
    return facts


def _scores(folder: Path) -> list[str]:
    steps, score, normalised = history.scores(folder)
    if not len(steps):
        return []
    name = "normalised score" if normalised else "return"
    figures.curves({"": {"": plain(steps, score)}}, "updates", name, folder / "report-scores.png")
    return ["<h2>Evaluations</h2>", image("report-scores", name)]


def _danger(folder: Path) -> list[str]:
    found = history.verdict(folder)
    if found is None:
        return []
    rows = history.diagnoses(folder)
    at = np.array([row["value/at"] for row in rows])

    def line(name: str) -> Curve:
        return plain(at, np.array([row.get(name, np.nan) for row in rows]))

    panels = {
        "at data states": {
            "value": line("value/q"),
            "earned in the model": line("value/monte_carlo"),
        },
        "ends outside, share": {"": line("reach/outside")},
        "critics' spread": {
            "inside": line("reach/spread_inside"),
            "at the edge": line("reach/spread_edge"),
        },
        "effective penalty": {
            "inside": line("reach/penalty_inside"),
            "at the edge": line("reach/penalty_edge"),
        },
    }
    figures.curves(panels, "updates", "", folder / "report-reach.png")
    return [
        "<h2>Reach and values</h2>",
        f"<p><strong>{escape(found.sentence)}</strong></p>",
        image("report-reach", "values, reach, spread and penalty"),
    ]


@dataclass(frozen=True)
class Plot:
    """Draw curves of runs: a panel a dataset, a line an algorithm, runs that differ in their seed
    alone as one line with its 95 % interval."""

    folders: tyro.conf.Positional[tuple[Path, ...]]  # run folders
    metric: str = "score"  # score, or a column of metrics.csv such as critic/q_mean
    out: Path = Path("plot.png")  # the figure; its data go beside it as CSV

    def main(self) -> int:
        if not self.folders:
            raise CheckpointError("name at least one run folder, such as runs/ravl/pendulum/seed-0")
        panels: dict[str, dict[str, list[tuple[np.ndarray, np.ndarray]]]] = {}
        for folder in self.folders:
            run = history.settings(folder)
            line = self._values(folder)
            panels.setdefault(run.data, {}).setdefault(run.algorithm, []).append(line)
        curves = {
            data: {name: _joined(lines) for name, lines in found.items()}
            for data, found in panels.items()
        }
        label = "score" if self.metric == "score" else self.metric
        self.out.parent.mkdir(parents=True, exist_ok=True)
        figures.curves(curves, "updates", label, self.out)
        print(f"wrote {self.out} and {self.out.with_suffix('.csv')}")
        return 0

    def _values(self, folder: Path) -> tuple[np.ndarray, np.ndarray]:
        if self.metric == "score":
            steps, values, _ = history.scores(folder)
            if not len(steps):
                raise CheckpointError(f"{folder} holds no evaluation yet; resume the run first")
            return steps, values
        known = history.metrics(folder)
        if self.metric not in known:
            raise unknown_name(f"metric in {folder}", self.metric, ["score", *known])
        return known[self.metric]


def _joined(lines: list[tuple[np.ndarray, np.ndarray]]) -> Curve:
    """Runs as one curve, over the steps that all of them have."""
    steps = lines[0][0]
    for x, _ in lines[1:]:
        steps = np.intersect1d(steps, x)
    values = np.array([y[np.isin(x, steps)] for x, y in lines])
    return figures.curve(steps, values) if len(lines) > 1 else plain(steps, values[0])


def report_main(arguments: list[str]) -> int:
    return tyro.cli(Report, args=arguments, prog="python -m experiments report").main()


def plot_main(arguments: list[str]) -> int:
    return tyro.cli(Plot, args=arguments, prog="python -m experiments plot").main()
