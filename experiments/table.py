"""The verb `table`: do the cells of a table that are missing, reuse those that are recorded, and
write the table and its figures."""

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from experiments import fits, jobs, plan, pool, records, render, studies, summary
from experiments import run as runs
from experiments.plan import Cell, Plan
from experiments.settings import RunSettings
from mbrl import data
from mbrl.data.fingerprint import fingerprint
from mbrl.errors import ConfigError, DataError


@dataclass(frozen=True)
class Table:
    """Finish and write a table; it may be stopped and started again at any time."""

    name: tyro.conf.Positional[str]  # a file in experiments/tables, or the path of another one
    run: bool = True  # --no-run: write what is recorded
    workers: int = 2  # jobs side by side, one thread each
    launcher: pool.Name = "local"  # processes of this machine, or Ray
    address: str | None = None  # of a running Ray cluster; None: one on this machine
    folder: Path = Path("runs/tables")  # where the run folders go; for Ray a shared folder
    seeds: int | None = None  # do only the first so many seeds
    strict: bool = False  # do cells again whose data have another checksum now
    check: int = 0  # do so many recorded cells again, drawn at random, and compare

    def main(self) -> int:
        table, console = plan.load(self.name), Console()
        cells = [c for block in table.blocks for c in table.cells(block)]
        with console.status("reading the data"):
            marks, missing = fingerprints(cells)
        if self.check > 0:
            return self._check(table, cells, marks, console)
        if self.run:
            self._run(table, cells, marks, console)
        found = summary.collect(table, marks, missing)
        written = render.write(found, records.RECORDS / table.name)
        console.print(render.markdown(found), markup=False, highlight=False, soft_wrap=True)
        console.print("written: " + ", ".join(map(str, written)), markup=False, soft_wrap=True)
        return 0

    def _run(self, table: Plan, cells: list[Cell], marks: dict[str, str], console: Console) -> None:
        """Do what is not recorded: block after block, in each a seed of all cells first."""
        seeds = table.seeds[: self.seeds]
        todo = []
        for cell in cells:
            record = recorded(table, cell)
            changed = record is not None and marks.get(cell.row.data) != record.get("fingerprint")
            if cell.seed in seeds and (record is None or (self.strict and changed)):
                todo.append(cell)
        home = self.folder / table.name
        with console.status(f"describing {len(todo)} jobs"):
            folders = describe_all(table, todo, marks, home)

        def finished(folder: Path) -> None:
            if folder in folders:
                cell = folders[folder]
                records.write(records.RECORDS / table.name / cell.path, cell.key, folder)

        launcher = pool.launcher(self.launcher, self.workers, self.address)
        try:
            failed = pool.run_all(with_fits(folders), launcher, table.name, finished)
        finally:
            launcher.close()
        for folder, text in failed.items():
            Console(stderr=True).print(f"{folder} failed:\n{text}", markup=False)

    def _check(
        self, table: Plan, cells: list[Cell], marks: dict[str, str], console: Console
    ) -> int:
        """Do recorded cells again, from nothing, and compare the records."""
        known = [c for c in cells if recorded(table, c) is not None]
        if not known:
            raise ConfigError(f"table {table.name!r} has no records to check yet")
        chosen = random.sample(known, min(self.check, len(known)))
        equal = 0
        with tempfile.TemporaryDirectory() as home:
            folders = describe_all(table, chosen, marks, Path(home))
            failed = pool.run_all(with_fits(folders), self.workers, "check")
            for folder, cell in folders.items():
                verdict = f"failed: {failed.get(folder)}"
                if folder not in failed:
                    new = records.write(folder / "record.json", cell.key, folder)
                    old = recorded(table, cell)
                    assert old is not None
                    verdict = "identical" if records.same(old, new) else "DIFFERENT"
                equal += verdict == "identical"
                name = f"{cell.column.label}, {cell.row.label}, seed {cell.seed}"
                console.print(f"{name}: {verdict}", markup=False)
        console.print(f"{equal} of {len(folders)} cells identical")
        return 0 if equal == len(folders) else 1


def fingerprints(cells: list[Cell]) -> tuple[dict[str, str], dict[str, str]]:
    """Fingerprint of each dataset that is here, and the reason for each that is not."""
    marks: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name in sorted({c.row.data for c in cells if c.row.data}):
        try:
            marks[name] = fingerprint(data.load(name))
        except DataError as error:
            missing[name] = str(error)
    return marks, missing


def recorded(table: Plan, cell: Cell) -> dict[str, Any] | None:
    return records.read(records.RECORDS / table.name / cell.path, cell.key)


def describe_all(
    table: Plan, cells: list[Cell], marks: dict[str, str], home: Path
) -> dict[Path, Cell]:
    """Describe the job of each cell in a folder under `home`; those without data are left out."""
    folders: dict[Path, Cell] = {}
    for cell in cells:
        mark = marks.get(cell.row.data)
        if cell.row.data and mark is None:
            continue
        folder = (home / cell.folder(mark)).resolve()
        folders[folder] = cell
        if (folder / "config.json").exists():
            continue
        if table.study is not None:
            studies.create(table.study, cell.row.settings, cell.seed, folder)
        else:
            assert mark is not None
            _describe_run(table, cell, mark, home, folder)
    return folders


def _describe_run(table: Plan, cell: Cell, mark: str, home: Path, folder: Path) -> None:
    config = plan.config_of(cell.column, cell.row.data)
    model = None
    if hasattr(config, "model"):
        settings = fits.FitSettings(cell.row.data, cell.seed)
        model = str(fits.shared(settings, config.model, mark, home / "fits"))
    run_settings = RunSettings(
        cell.column.algorithm,
        cell.row.data,
        steps=cell.key["steps"],
        seed=cell.seed,
        tensorboard=False,
        fqe_steps=table.fqe_steps,
        model=model,
    )
    runs.create(run_settings, config, folder)


def with_fits(folders: dict[Path, Cell]) -> list[Path]:
    """The jobs in order, each fit before the first run that uses it."""
    ordered: dict[Path, None] = {}
    for folder in folders:
        first = jobs.needs(folder)
        if first is not None:
            ordered[first] = None
        ordered[folder] = None
    return list(ordered)


def table_main(arguments: list[str]) -> int:
    return tyro.cli(Table, args=arguments, prog="python -m experiments table").main()
