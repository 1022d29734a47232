"""The verb `sweep`: every combination of algorithms, datasets, settings and seeds, as a table."""

import contextlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from algorithms import ALGORITHMS
from experiments.runs import folders, launchers
from experiments.settings import merge
from experiments.tables import plan, table
from experiments.tables.plan import Block, Column, Plan, Row, SweptHyperparameter
from mbrl.config import Count, CountOrZero, Names, Seeds, Settings
from mbrl.data.loading import require
from mbrl.errors import ConfigError, unknown_name
from mbrl.terminal import terminal

SET = (
    "settings to vary, such as learner.eta=0.5,1 learner.critics=5,10; every combination of the "
    "values is run"
)


@dataclass(frozen=True)
class Sweep(Settings):
    """Train every combination, and write a table. The same command continues a sweep that was
    stopped. Records, the table and the run folders are written to `out`."""

    algorithms: Names  # names in `python -m experiments list`
    data: Names  # datasets
    seeds: Seeds = (0,)  # seeds of each combination
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=V1,V2", help=SET)] = ()
    steps: Count | None = None  # updates of a run; None: the preset's
    fqe_steps: CountOrZero = (
        0  # updates of the fitted Q evaluation that chooses among them; 0: none
    )
    out: Path = Path("runs/sweep")  # folder
    workers: Count = 2  # jobs side by side, one thread each
    device: str = "cpu"  # where the runs train: cpu or cuda
    launcher: launchers.Name = "local"  # processes of this machine, or Ray
    address: str | None = None  # of a running Ray cluster; None: one on this machine

    def main(self) -> int:
        launchers.require_device(self.device, self.launcher)
        sweep, refused = self._plan()
        self._require_own(sweep)
        with folders.locked(self.out):
            launcher = launchers.launcher(self.launcher, self.workers, self.address)
            with contextlib.closing(launcher):
                status = table.finish(
                    sweep, self.out, self.out / "runs", launcher, table.all_cells(sweep)
                )
            table.show(sweep, self.out, terminal())
        for label, reason in refused.items():
            terminal(error=True).print(f"left out, {label}: {reason}")
        return 1 if refused else status

    def _require_own(self, sweep: Plan) -> None:
        """Raise `ConfigError` where `out` has results of other numbers of updates, which those of
        this sweep would replace."""
        for cell in table.all_cells(sweep):
            file = self.out / cell.path
            known = json.loads(file.read_text())["key"] if file.exists() else cell.key
            for name in ("steps", "fqe_steps"):
                if known.get(name) != cell.key.get(name):
                    raise ConfigError(
                        f"{self.out} has results with {name} {known.get(name)}, not "
                        f"{cell.key.get(name)}; give another folder with --out"
                    )

    def _plan(self) -> tuple[Plan, dict[str, str]]:
        """The plan of what can be, and why each other combination cannot."""
        for algorithm in self.algorithms:
            if algorithm not in ALGORITHMS:
                raise unknown_name("algorithm", algorithm, ALGORITHMS)
        for name in self.data:
            require(name)
        choices = [plan.parse_values(text) for text in self.set]
        _require_once("--set", [name for name, _ in choices])
        for name, options in choices:
            _require_once(f"--set {name}", [_text(value) for value in options])
        columns: list[Column] = []
        swept_values: list[Any] = []
        refused: dict[str, str] = {}
        for algorithm in self.algorithms:
            for values in itertools.product(*(options for _, options in choices)):
                label = algorithm
                config: dict[str, Any] = {}
                for (name, _), value in zip(choices, values, strict=True):
                    label += f" {name.split('.')[-1]}={_text(value)}"
                    config = merge(config, plan.nested(name, value))
                column = Column(label, algorithm, config)
                try:
                    for dataset in self.data:
                        plan.config_of(column, dataset)  # raises on impossible settings
                except ConfigError as problem:
                    refused[label] = str(problem)
                else:
                    columns.append(column)
                    swept_values += values
        if not columns:
            raise ConfigError("; ".join(f"{label}: {text}" for label, text in refused.items()))
        rows = tuple(Row(name, name, self.steps) for name in self.data)
        _require_folders("--data", rows)
        _require_folders("the labels of the columns", columns)
        swept = None
        numeric = all(isinstance(v, int | float) for v in swept_values)
        if numeric and len(choices) == 1 and len(self.algorithms) == 1:
            swept = SweptHyperparameter(choices[0][0], tuple(swept_values))
        sweep = Plan(
            self.out.name,
            "Sweep",
            (Block("", rows, tuple(columns), tuple(self.seeds)),),
            fqe_steps=self.fqe_steps,
            swept=swept,
            device=self.device,
        )
        return sweep, refused


def _require_once(what: str, texts: Sequence[str]) -> None:
    """Raise `ConfigError` where one of `texts` stands twice: its runs would count as others."""
    for text in texts:
        if list(texts).count(text) > 1:
            raise ConfigError(f"{what} has {text} twice; give it once")


def _require_folders(what: str, parts: Sequence[Row | Column]) -> None:
    """Raise `ConfigError` where two names would share one folder of results."""
    first: dict[str, str] = {}
    for part in parts:
        other = first.setdefault(part.folder, part.label)
        if other != part.label:
            raise ConfigError(
                f"{what}: {other} and {part.label} would share the folder {part.folder} of results;"
                " rename one, or sweep them into two folders with --out"
            )


def _text(value: Any) -> str:
    return json.dumps(value).replace(" ", "").replace('"', "").replace(",", "x")


def main(arguments: list[str]) -> int:
    return tyro.cli(Sweep, args=arguments, prog="python -m experiments sweep").main()
