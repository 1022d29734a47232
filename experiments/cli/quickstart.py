"""The verb `quickstart`: RAVL, EDAC and MBPO on a shipped dataset, three seeds each, compared."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from rich.text import Text

from experiments.reports import figures
from experiments.reports.grid import grid
from experiments.runs import jobs, pool
from experiments.runs import training as runs
from experiments.runs.folders import write_json
from experiments.settings import RunSettings, preset_config
from mbrl import data
from mbrl.config import Count, Seeds, Settings
from mbrl.errors import ConfigError, MissingPackage
from mbrl.records import Evaluations
from mbrl.terminal import terminal
from mbrl.types import Dataset
from world_models import EnsembleDynamics
from world_models import diagnostics as measures

ALGORITHMS = ("ravl", "edac", "mbpo")


@dataclass(frozen=True)
class Quickstart(Settings):
    """Train RAVL (in a learned world model), EDAC (on the real data only) and MBPO (in the model,
    with two critics) on a shipped dataset, and compare their last evaluations."""

    data: str = "pendulum/medium-replay"  # any dataset whose task is in the library
    seeds: Seeds = (0, 1, 2)  # one run each
    rows: Count | None = None  # use the first rows only
    steps: Count = 4000  # updates; fewer than the preset's, so that a run takes about a minute
    workers: Count = 2  # runs side by side, one thread each
    out: Path = Path("runs/quickstart")  # where the run folders go

    def main(self) -> int:
        dataset = data.load(self.data)
        name, out = self.data, self.out / self.data.replace("/", "-")
        if self.rows is not None:
            dataset = dataset.with_transitions(dataset.transitions.select(slice(0, self.rows)))
            out = out.with_name(f"{out.name}-{self.rows}")
            out.mkdir(parents=True, exist_ok=True)
            name = str(out / "data.npz")
            data.save_npz(dataset, name)
        folders = {
            (algorithm, seed): out / algorithm / f"seed-{seed}"
            for algorithm in ALGORITHMS
            for seed in self.seeds
        }
        for (algorithm, seed), folder in folders.items():
            settings = RunSettings(algorithm, name, steps=self.steps, seed=seed)
            require_same(folder, self.steps)
            runs.ensure(settings, preset_config(algorithm, name, "quickstart"), folder)
        failed = pool.run_all(list(folders.values()), self.workers, f"{self.data}")
        for folder, text in failed.items():
            terminal(error=True).print(Text.assemble((f"{folder} failed", "red"), f"\n{text}"))
        if failed:
            return 1
        self._report(dataset, folders, out)
        return 0

    def _report(self, dataset: Dataset, folders: dict[tuple[str, int], Path], out: Path) -> None:
        spec, console = dataset.spec, terminal()
        scores: dict[str, np.ndarray] = {}
        curves: dict[str, figures.Curve] = {}
        columns = ["algorithm", *(f"seed {s}" for s in self.seeds), "mean", "seconds a run"]
        table = grid(*columns, title=f"{self.data} ({len(dataset)} transitions): last score")
        for algorithm in ALGORITHMS:
            mine = [folders[algorithm, seed] for seed in self.seeds]
            evaluations = [Evaluations.load(folder / "evaluations.npz") for folder in mine]
            curve = np.array([[spec.score(r.mean()) for r in e.returns] for e in evaluations])
            scores[algorithm] = curve[:, -1]
            curves[algorithm] = figures.curve(np.array(evaluations[0].steps), curve)
            longest = max(map(jobs.seconds, mine))
            values = [f"{v:.1f}" for v in curve[:, -1]]
            table.add_row(algorithm, *values, f"{curve[:, -1].mean():.1f}", f"{longest:.0f}")
        console.print(table)
        steps = int(curves["ravl"].x[-1])
        low, high = spec.reference_returns or (0.0, 1.0)
        console.print(
            f"{steps} updates, last evaluation, 100 fixed starts in {spec.task}; score 0 is a "
            f"return of {low}, 100 of {high}"
        )
        error = held_out_error(dataset)
        console.print(
            f"world model on held-out episodes, median error in standard deviations: "
            f"{error.median[0]:.4f} after one step, {error.median[-1]:.4f} after "
            f"{len(error.median)}"
        )
        numbers = {
            "data": self.data,
            "transitions": len(dataset),
            "updates": steps,
            "seeds": list(self.seeds),
            "last_scores": {k: v.tolist() for k, v in scores.items()},
            "held_out_error": error.median.tolist(),
        }
        write_json(out / "scores.json", numbers)
        try:
            figures.learning_curves({self.data: curves}, out / "scores.png")
            text = f"curves in {out / 'scores.png'}, run folders beside it"
        except MissingPackage as problem:
            text = f"curves in {out / 'scores.csv'}, run folders beside it; {problem}"
        console.print(text, soft_wrap=True)


def require_same(folder: Path, steps: int) -> None:
    """Raise `ConfigError` if the folder holds a run with another number of updates."""
    file = folder / "config.json"
    known = json.loads(file.read_text())["run"]["steps"] if file.exists() else steps
    if known != steps:
        raise ConfigError(
            f"{folder} holds a run of {known} updates, not of {steps}; give `--steps {known}`, or "
            "another folder with --out"
        )


def held_out_error(dataset: Dataset, share: float = 0.1, seed: int = 0) -> measures.KStepError:
    """Five-step error of a model with RAVL's config on held-out episodes."""
    torch.set_num_threads(1)
    config = preset_config("ravl", dataset.provenance.card).model
    train, test = measures.split_episodes(dataset.transitions, share, seed)
    model = EnsembleDynamics(dataset.spec, config, seed=seed)
    model.fit(train)
    return measures.k_step_error(model, test, 5)


def main(arguments: list[str]) -> int:
    return tyro.cli(Quickstart, args=arguments, prog="python -m experiments quickstart").main()
