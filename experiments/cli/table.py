"""The verb `table`: fill in the missing cells of a table, and write it with its figures."""

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import tyro

from experiments.cli import _positional as positional


@dataclass(frozen=True)
class Table:
    """Run the cells of a table that have no record, and write the table. The same command continues
    one that was stopped."""

    name: positional.Table  # in experiments/tables/definitions, or the path of a file
    run: bool = True  # --no-run: only write the table from its records
    workers: int = 2  # jobs side by side, one thread each
    device: str = "cpu"  # where runs train that begin now: cpu or cuda; studies take the CPU
    launcher: Literal["local", "ray"] = "local"  # processes of this machine, or Ray
    address: str | None = None  # of a running Ray cluster; None: one on this machine
    folder: Path = Path("runs/tables")  # of the run folders; for Ray on a shared file system
    seeds: int | None = None  # only this many of the first seeds
    blocks: tuple[str, ...] = ()  # only blocks whose titles begin with these (R1 R2)
    only: tuple[str, ...] = ()  # only these columns
    rows: tuple[str, ...] = ()  # only rows with these labels; * stands for any text
    strict: bool = False  # also repeat cells whose data have changed
    check: int = 0  # instead: repeat this many random recorded cells, and compare

    def main(self) -> int:
        from experiments.runs.launchers import Local, launcher, require_device
        from experiments.tables import plan, records
        from experiments.tables.table import check, choose, finish, show
        from mbrl import config
        from mbrl.errors import ConfigError
        from mbrl.terminal import terminal

        config.check(vars(self), {"workers": config.Count, "check": config.CountOrZero})
        if self.seeds is not None:
            config.check({"seeds": self.seeds}, {"seeds": config.Count})
        require_device(self.device, self.launcher)
        table, console = replace(plan.load(self.name), device=self.device), terminal()
        if self.device != "cpu" and table.studies_only:
            raise ConfigError(
                f"device is {self.device!r}, but table {table.name!r} consists of studies, which "
                "run on the CPU; leave --device out"
            )
        home = records.home(self.name)
        chosen = choose(table, self.seeds, self.only, self.blocks, self.rows)
        if self.check > 0:
            return check(table, home, chosen, self.check, Local(self.workers), console)
        status = 0
        if self.run:
            with contextlib.closing(launcher(self.launcher, self.workers, self.address)) as where:
                place = self.folder / table.name
                status = finish(table, home, place, where, chosen, strict=self.strict)
        show(table, home, console)
        return status


def main(arguments: list[str]) -> int:
    return tyro.cli(Table, args=arguments, prog="python -m experiments table").main()
