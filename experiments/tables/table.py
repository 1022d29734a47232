"""The verb `table`: do the cells of a table that are missing, reuse those that are recorded, and
write the table and its figures."""

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from experiments.runs import jobs, launchers, pool, study
from experiments.runs import model_fits as fits
from experiments.runs import training as runs
from experiments.settings import RunSettings
from experiments.tables import cost, page, plan, records, render, summary, table_figures
from experiments.tables.plan import Cell, Plan
from mbrl import data
from mbrl.data.fingerprint import fingerprint
from mbrl.errors import ConfigError, DataError, unknown_name


def show(table: Plan, home: Path, console: Console) -> None:
    """Write the table from the records under `home`, and print it."""
    marks, missing = fingerprints(all_cells(table))
    found = summary.collect(table, home, marks, missing)
    home.mkdir(parents=True, exist_ok=True)
    figures = table_figures.draw(found, home)
    (home / "table.html").write_text(page.html(found, figures))
    written = [*render.write(found, home), home / "table.html", *figures]
    console.print(render.markdown(found), markup=False, highlight=False, soft_wrap=True)
    console.print("written: " + ", ".join(map(str, written)), markup=False, soft_wrap=True)


def all_cells(table: Plan) -> list[Cell]:
    """Block after block, in each a seed of all cells first: what is unfinished has whole seeds."""
    return [cell for block in table.blocks for cell in table.cells(block)]


def choose(
    table: Plan, seeds: int | None, only: Sequence[str], blocks: Sequence[str] = ()
) -> list[Cell]:
    """The cells of the first `seeds` seeds, of the columns `only`, and of the blocks whose title
    begins with one of `blocks`; None and empty: all. What two blocks share comes once."""
    for label in only:
        labels = {c.column.label for c in all_cells(table)}
        if label not in labels:
            raise unknown_name("column", label, labels)
    titles = [block.title for block in table.blocks]
    for name in blocks:
        if not any(title.startswith(name) for title in titles):
            raise unknown_name("block", name, titles)
    chosen: dict[Path, Cell] = {}
    for block in table.blocks:
        if not blocks or block.title.startswith(tuple(blocks)):
            cells = [c for c in table.cells(block) if c.seed in block.seeds[:seeds]]
            chosen |= {c.path: c for c in cells if not only or c.column.label in only}
    return list(chosen.values())


def finish(
    table: Plan,
    home: Path,
    folder: Path,
    where: launchers.Launcher,
    cells: Sequence[Cell],
    *,
    strict: bool = False,
) -> None:
    """Do those of `cells` that have no record under `home`, in job folders under `folder`.
    `strict`: also those whose data have changed. Failures are printed; the others go on."""
    marks, _ = fingerprints(cells)
    todo = []
    for cell in cells:
        record = records.read(home / cell.path, cell.key)
        if record is None:
            record = records.borrow(home, cell.path, cell.key)
        changed = record is not None and marks.get(cell.row.data) != record.get("fingerprint")
        if record is None or (strict and changed):
            todo.append(cell)
    Console().print(cost.sentence(todo, home, where.workers), soft_wrap=True, highlight=False)
    with Console().status(f"describing {len(todo)} jobs"):
        described = describe_all(table, todo, marks, folder)

    def finished(folder: Path) -> None:
        if folder in described:
            cell = described[folder]
            records.write(home / cell.path, cell.key, folder)

    failed = pool.run_all(jobs.in_order(described), where, table.name, finished)
    for broken, text in failed.items():
        Console(stderr=True).print(f"{broken} failed:\n{text}", markup=False)


def check(
    table: Plan,
    home: Path,
    cells: Sequence[Cell],
    count: int,
    where: launchers.Launcher,
    console: Console,
) -> int:
    """Do `count` of the recorded cells again, from nothing, and compare; 0 if all agree."""
    marks, _ = fingerprints(cells)
    known = [c for c in cells if records.read(home / c.path, c.key) is not None]
    if not known:
        raise ConfigError(f"table {table.name!r} has no records to check yet")
    chosen = random.sample(known, min(count, len(known)))
    equal = 0
    with tempfile.TemporaryDirectory() as place:
        described = describe_all(table, chosen, marks, Path(place) / table.name)
        failed = pool.run_all(jobs.in_order(described), where, "check")
        for folder, cell in described.items():
            verdict = f"failed: {failed.get(folder)}"
            if folder not in failed:
                new = records.write(folder / "record.json", cell.key, folder)
                old = records.read(home / cell.path, cell.key)
                assert old is not None
                verdict = "identical" if records.same(old, new) else "DIFFERENT"
                then, now = (r.get("processor") for r in (old, new))
                if verdict == "DIFFERENT" and then != now:
                    verdict += f" (recorded on {then}, done on {now}, which may round otherwise)"
            equal += verdict == "identical"
            name = f"{cell.column.label}, {cell.row.label}, seed {cell.seed}"
            console.print(f"{name}: {verdict}", markup=False)
    console.print(f"{equal} of {len(described)} cells identical")
    return 0 if equal == len(described) else 1


def fingerprints(cells: Sequence[Cell]) -> tuple[dict[str, str], dict[str, str]]:
    """Fingerprint of each dataset that is here, and the reason for each that is not."""
    marks: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name in sorted({c.row.data for c in cells if c.row.data}):
        try:
            marks[name] = fingerprint(data.load(name))
        except DataError:
            missing[name] = (
                f"{name} is not here: `python -m experiments data fetch {name}` gets it."
            )
    return marks, missing


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
        if "study" in cell.key:
            study.create(cell.key["study"], cell.row.settings, cell.seed, folder, home.parent)
        else:
            assert mark is not None
            _describe_run(table, cell, mark, home, folder)
    return folders


def _describe_run(table: Plan, cell: Cell, mark: str, home: Path, folder: Path) -> None:
    config = plan.config_of(cell.column, cell.row.data, cell.key["steps"])
    fit = fits.for_run(
        fits.FitSettings(cell.row.data, cell.seed), config, mark, home.parent / "fits"
    )
    run_settings = RunSettings(
        cell.column.algorithm,
        cell.row.data,
        steps=cell.key["steps"],
        seed=cell.seed,
        tensorboard=False,
        fqe_steps=table.fqe_steps,
        model=None if fit is None else str(fit),
    )
    runs.create(run_settings, config, folder)
