"""The verb `sweep`: every combination of algorithms, datasets, settings and seeds, as a table."""

import contextlib
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from algorithms import ALGORITHMS
from experiments.runs import launchers
from experiments.settings import merge
from experiments.tables import plan, table
from experiments.tables.plan import Block, Column, Plan, Row, SweptHyperparameter
from mbrl.config import Count, CountOrZero, Settings
from mbrl.data.loading import require
from mbrl.errors import unknown_name

SET = (
    "settings to vary, such as learner.eta=0.5,1 learner.critics=5,10; every combination of the "
    "values is run"
)


@dataclass(frozen=True)
class Sweep(Settings):
    """Train every combination, and write a table. The same command continues a sweep that was
    stopped. Records, the table and the run folders are written to `out`."""

    algorithms: tuple[str, ...]  # names in `python -m experiments list`
    data: tuple[str, ...]  # datasets
    seeds: tuple[CountOrZero, ...] = (0,)  # seeds of each combination
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=V1,V2", help=SET)] = ()
    steps: Count | None = None  # updates of a run; None: the preset's
    fqe_steps: CountOrZero = (
        0  # updates of the fitted Q evaluation that chooses among them; 0: none
    )
    out: Path = Path("runs/sweep")  # folder
    workers: Count = 2  # jobs side by side, one thread each
    launcher: launchers.Name = "local"  # processes of this machine, or Ray
    address: str | None = None  # of a running Ray cluster; None: one on this machine

    def main(self) -> int:
        sweep = self._plan()
        launcher = launchers.launcher(self.launcher, self.workers, self.address)
        with contextlib.closing(launcher):
            table.finish(sweep, self.out, self.out / "runs", launcher, table.all_cells(sweep))
        table.show(sweep, self.out, Console())
        return 0

    def _plan(self) -> Plan:
        for algorithm in self.algorithms:
            if algorithm not in ALGORITHMS:
                raise unknown_name("algorithm", algorithm, ALGORITHMS)
        for data in self.data:
            require(data)
        choices = [plan.parse_values(text) for text in self.set]
        columns = []
        for algorithm in self.algorithms:
            for values in itertools.product(*(options for _, options in choices)):
                label = algorithm
                config: dict[str, Any] = {}
                for (name, _), value in zip(choices, values, strict=True):
                    label += f" {name.split('.')[-1]}={_text(value)}"
                    config = merge(config, plan.nested(name, value))
                columns.append(Column(label, algorithm, config))
        rows = tuple(Row(data, data, self.steps) for data in self.data)
        for row, column in itertools.product(rows, columns):
            plan.config_of(column, row.data)  # raises on impossible settings
        swept = None
        if len(choices) == 1 and len(self.algorithms) == 1:
            name, options = choices[0]
            if all(isinstance(v, int | float) for v in options):
                swept = SweptHyperparameter(name, tuple(options))
        return Plan(
            self.out.name,
            "Sweep",
            (Block("", rows, tuple(columns), tuple(self.seeds)),),
            fqe_steps=self.fqe_steps,
            swept=swept,
        )


def _text(value: Any) -> str:
    return json.dumps(value).replace(" ", "").replace('"', "").replace(",", "x")


def main(arguments: list[str]) -> int:
    return tyro.cli(Sweep, args=arguments, prog="python -m experiments sweep").main()
