"""The verb `table`: fill in the missing cells of a table, and write it with its figures."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass(frozen=True)
class Table:
    """Finish and write a table; it may be stopped and started again at any time."""

    name: tyro.conf.Positional[str]  # in experiments/tables/definitions, or the path of a file
    run: bool = True  # --no-run: write what is recorded
    workers: int = 2  # jobs side by side, one thread each
    launcher: Literal["local", "ray"] = "local"  # processes of this machine, or Ray
    address: str | None = None  # of a running Ray cluster; None: one on this machine
    folder: Path = Path("runs/tables")  # where the run folders go; for Ray a shared folder
    seeds: int | None = None  # do only the first so many seeds
    blocks: tuple[str, ...] = ()  # do only blocks whose title begins so (R1 R2); none named: all
    only: tuple[str, ...] = ()  # do only these columns; none named: all
    strict: bool = False  # do cells again whose data have another checksum now
    check: int = 0  # do so many recorded cells again, drawn at random, and compare

    def main(self) -> int:
        from rich.console import Console  # here, as `--help` is to come at once

        from experiments.runs.launchers import Local, launcher
        from experiments.tables import plan, records
        from experiments.tables.table import check, choose, finish, show

        table, console = plan.load(self.name), Console()
        home = records.RECORDS / table.name
        chosen = choose(table, self.seeds, self.only, self.blocks)
        if self.check > 0:
            return check(table, home, chosen, self.check, Local(self.workers), console)
        if self.run:
            where = launcher(self.launcher, self.workers, self.address)
            try:
                finish(table, home, self.folder / table.name, where, chosen, strict=self.strict)
            finally:
                where.close()
        show(table, home, console)
        return 0


def main(arguments: list[str]) -> int:
    return tyro.cli(Table, args=arguments, prog="python -m experiments table").main()
