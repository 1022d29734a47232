"""The verb `sweep`: seeds x datasets x algorithms x settings, as a table that needs no file."""

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
from experiments.tables.plan import Block, Column, Knob, Plan, Row
from mbrl.cards import find_tier
from mbrl.errors import ConfigError, unknown_name

SET = (
    "settings to vary, such as learner.eta=0.5,1 learner.critics=5,10; every combination of the "
    "values is run"
)


@dataclass(frozen=True)
class Sweep:
    """Train every combination; it may be stopped and started again at any time. Records, the table
    and the run folders land in `out`."""

    algorithms: tuple[str, ...]  # names in `python -m experiments list`
    data: tuple[str, ...]  # datasets
    seeds: tuple[int, ...] = (0,)  # seeds of each combination
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KNOB=V1,V2", help=SET)] = ()
    steps: int | None = None  # updates of a run; None: the preset's
    fqe_steps: int = 0  # updates of the fitted Q evaluation that chooses a checkpoint; 0: none
    out: Path = Path("runs/sweep")  # folder
    workers: int = 2  # jobs side by side, one thread each
    launcher: launchers.Name = "local"  # processes of this machine, or Ray
    address: str | None = None  # of a running Ray cluster; None: one on this machine

    def main(self) -> int:
        sweep = self._plan()
        where = launchers.launcher(self.launcher, self.workers, self.address)
        try:
            table.finish(sweep, self.out, self.out / "runs", where, table.all_cells(sweep))
        finally:
            where.close()
        table.show(sweep, self.out, Console())
        return 0

    def _plan(self) -> Plan:
        for algorithm in self.algorithms:
            if algorithm not in ALGORITHMS:
                raise unknown_name("algorithm", algorithm, ALGORITHMS)
        for data in self.data:
            find_tier(data)
        choices = [parse_knob(text) for text in self.set]
        columns = []
        for algorithm in self.algorithms:
            for values in itertools.product(*(options for _, options in choices)):
                label = algorithm
                config: dict[str, Any] = {}
                for (knob, _), value in zip(choices, values, strict=True):
                    label += f" {knob.split('.')[-1]}={_text(value)}"
                    config = merge(config, plan.nested(knob, value))
                columns.append(Column(label, algorithm, config))
        rows = tuple(Row(data, data, self.steps) for data in self.data)
        for row, column in itertools.product(rows, columns):
            plan.config_of(column, row.data)  # refuses what cannot be
        swept = None
        if len(choices) == 1 and len(self.algorithms) == 1:
            name, options = choices[0]
            if all(isinstance(v, int | float) for v in options):
                swept = Knob(name, tuple(options))
        return Plan(
            self.out.name,
            "Sweep",
            (Block("", rows, tuple(columns), tuple(self.seeds)),),
            fqe_steps=self.fqe_steps,
            knob=swept,
        )


def parse_knob(text: str) -> tuple[str, list[Any]]:
    """`a.b=1,2` as ("a.b", [1, 2]); values are JSON (numbers, true, null, [64, 64]) or words."""
    knob, sign, values = text.partition("=")
    if not sign or not knob or not values:
        raise ConfigError(f"setting {text!r} is not KNOB=VALUE[,VALUE...]; try learner.eta=0.5,1")
    try:
        return knob, list(json.loads(f"[{values}]"))
    except json.JSONDecodeError:
        return knob, [_word(v) for v in values.split(",")]


def _word(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _text(value: Any) -> str:
    return json.dumps(value).replace(" ", "").replace('"', "").replace(",", "x")


def main(arguments: list[str]) -> int:
    return tyro.cli(Sweep, args=arguments, prog="python -m experiments sweep").main()
