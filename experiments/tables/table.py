"""Run the cells of a table that have no record, repeat some that have one, and write the table with
its figures."""

import fnmatch
import functools
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from experiments.runs import folders, jobs, pool, study
from experiments.runs import model_fits as fits
from experiments.runs import training as runs
from experiments.runs.launchers import Launcher
from experiments.runs.selection import values_differ
from experiments.settings import RunSettings
from experiments.tables import cost, page, plan, records, render, summary, table_figures
from experiments.tables.plan import Cell, Plan
from mbrl import data, statistics
from mbrl.data.cards import find_tier
from mbrl.data.fingerprint import fingerprint
from mbrl.data.split import hold_out
from mbrl.errors import ConfigError, DataError, MissingDataError, unknown_name
from mbrl.files import write_text
from mbrl.terminal import terminal


def show(table: Plan, home: Path, console: Console) -> None:
    """Write the table from the records under `home`, and print it."""
    results = summary.collect(table, home, *fingerprints(all_cells(table)))
    home.mkdir(parents=True, exist_ok=True)
    written = render.write(results, home)  # first, whatever becomes of the figures
    figures = unchanged(home, lambda: table_figures.draw(results, home))
    write_text(home / "table.html", page.html(results, figures))
    written += [home / "table.html", *figures]
    console.print(render.markdown(results), highlight=False, soft_wrap=True)
    console.print("written: " + ", ".join(map(str, written)), soft_wrap=True)


def unchanged(home: Path, draw: Callable[[], list[Path]]) -> list[Path]:
    """The pictures of `draw` in `home`; one whose data stay the same stays itself, since another
    release of the plotting library draws other bytes."""
    before = {
        file: (file.read_bytes(), file.with_suffix(".csv").read_bytes())
        for file in home.glob("*.png")
        if file.with_suffix(".csv").exists()
    }
    figures = draw()
    for file in figures:
        if file in before and file.with_suffix(".csv").exists():
            picture, data_before = before[file]
            if file.with_suffix(".csv").read_bytes() == data_before:
                file.write_bytes(picture)
    return figures


def all_cells(table: Plan) -> list[Cell]:
    """The cells of all blocks, in each block one seed of every cell before the next seed."""
    return [cell for block in table.blocks for cell in table.cells(block)]


def choose(
    table: Plan,
    seeds: int | None,
    only: Sequence[str],
    blocks: Sequence[str] = (),
    rows: Sequence[str] = (),
) -> list[Cell]:
    """The cells of the first `seeds` seeds, of the columns `only`, of the blocks whose title
    begins with one of `blocks` and of the rows whose label is one of `rows` or matches one as a
    pattern (`*` for any text); None and empty select all. A cell of two blocks is listed once.
    Raises `ConfigError` where a column, block or row is not in the table."""
    for label in only:
        labels = {c.column.label for c in all_cells(table)}
        if label not in labels:
            raise unknown_name("column", label, labels)
    titles = [block.title for block in table.blocks]
    for name in blocks:
        if not any(title.startswith(name) for title in titles):
            raise unknown_name("block", name, titles)
    named = {row.label for block in table.blocks for row in block.rows}
    for name in rows:
        if not any(_matches(label, name) for label in named):
            raise unknown_name("row", name, named)
    chosen: dict[Path, Cell] = {}
    for block in table.blocks:
        if not blocks or block.title.startswith(tuple(blocks)):
            cells = [c for c in table.cells(block) if c.seed in block.seeds[:seeds]]
            cells = [c for c in cells if not only or c.column.label in only]
            cells = [c for c in cells if not rows or any(_matches(c.row.label, r) for r in rows)]
            chosen |= {c.path: c for c in cells}
    return list(chosen.values())


def _matches(label: str, pattern: str) -> bool:
    return label == pattern or fnmatch.fnmatchcase(label, pattern)


def finish(
    table: Plan,
    home: Path,
    folder: Path,
    launcher: Launcher,
    cells: Sequence[Cell],
    *,
    strict: bool = False,
) -> int:
    """Run those of `cells` that have no record under `home`, in job folders under `folder`; with
    `strict` also those whose data have changed. A failure is printed and stops no other job.
    A run that diverges is recorded as such. Returns the exit status: 1 if a job failed otherwise.
    """
    fingerprint_of, _ = fingerprints(cells)
    missing = []
    for cell in cells:
        record = records.read(home / cell.path, cell.key)
        if record is None:
            here = fingerprint_of.get(cell.row.trained_on) if cell.row.data else None
            record = records.copy_from_other_table(home, cell.path, cell.key, here)
        if record is None or (strict and _data_changed(cell, record, fingerprint_of)):
            missing.append(cell)
    terminal().print(
        cost.sentence(missing, home, launcher.workers), soft_wrap=True, highlight=False
    )
    with terminal().status(f"describing {len(missing)} jobs"):
        refused: dict[Path, str] = {}
        cell_of = describe_all(table, missing, fingerprint_of, folder, refused)

    def write_record(folder: Path) -> None:
        if folder in cell_of:
            cell = cell_of[folder]
            record = records.write(home / cell.path, cell.key, folder)
            summary.require_metrics(metrics_of[cell.path], record)  # before others are begun

    metrics_of = {c.path: b.metrics for b in table.blocks for c in table.cells(b)}

    failed = pool.run_all(jobs.in_order(cell_of), launcher, table.name, write_record)
    for broken, text in (failed | refused).items():
        terminal(error=True).print(f"{broken} failed:\n{text}")
    diverged = [f for f in failed if f in cell_of and (f / folders.DIVERGED).exists()]
    for folder in diverged:
        write_record(folder)
    return int(len(failed) + len(refused) > len(diverged))


def _data_changed(cell: Cell, record: dict[str, Any], fingerprint_of: dict[str, str]) -> bool:
    known = fingerprint_of.get(cell.row.trained_on)
    return bool(cell.row.data) and known != record.get("fingerprint")


def check(
    table: Plan,
    home: Path,
    cells: Sequence[Cell],
    count: int,
    launcher: Launcher,
    console: Console,
) -> int:
    """Repeat `count` recorded cells from scratch and compare the records; 0 if all agree. Of runs
    that differ, how their scores do, beside how far seeds of a cell lie apart."""
    fingerprint_of, _ = fingerprints(cells)
    recorded = [c for c in cells if records.read(home / c.path, c.key) is not None]
    if not recorded:
        raise ConfigError(f"table {table.name!r} has no records to check yet")
    chosen = random.sample(recorded, min(count, len(recorded)))
    equal, changes = 0, []
    with tempfile.TemporaryDirectory() as place:
        cell_of = describe_all(table, chosen, fingerprint_of, Path(place) / table.name)
        failed = pool.run_all(jobs.in_order(cell_of), launcher, "check")
        for folder, cell in cell_of.items():
            verdict = f"failed: {failed.get(folder)}"
            if folder not in failed or (folder / folders.DIVERGED).exists():
                new = records.write(folder / "record.json", cell.key, folder)
                old = records.read(home / cell.path, cell.key)
                assert old is not None
                verdict = "identical" if records.agree(old, new) else "DIFFERENT"
                before, now = (r.get("processor") for r in (old, new))
                if verdict == "DIFFERENT" and before != now:
                    verdict += f" (recorded on {before}, repeated on {now}: rounding may differ)"
                if "study" not in cell.key and "diverged" not in old | new:
                    was, is_now = records.last_score(old), records.last_score(new)
                    changes.append(is_now - was)
                    verdict += f"; score {was:.1f}, now {is_now:.1f}" if was != is_now else ""
            equal += verdict == "identical"
            name = f"{cell.column.label}, {cell.row.label}, seed {cell.seed}"
            console.print(f"{name}: {verdict}")
    console.print(f"{equal} of {len(cell_of)} cells identical")
    if equal < len(changes) > 1:
        console.print(_change(table, home, chosen, np.array(changes)))
    return 0 if equal == len(cell_of) else 1


def _change(table: Plan, home: Path, chosen: Sequence[Cell], changes: np.ndarray) -> str:
    """Mean and size of the changes of scores, beside how far two seeds of the same cells lie apart:
    runs that rounding alone tells apart may come to that."""
    spreads = []
    seeds = {c.path: c for b in table.blocks for c in table.cells(b)}
    for cell in chosen:
        same = [c for c in seeds.values() if c.path.parent == cell.path.parent]
        known = [records.read(home / c.path, c.key) for c in same]
        last = [records.last_score(r) for r in known if r is not None and "diverged" not in r]
        if len(last) > 1:
            spreads.append(float(np.var(last, ddof=1)))
    at = statistics.confidence_interval(changes, statistics.mean)
    beside = f"; two seeds of them {np.sqrt(2 * np.mean(spreads)):.1f}" if spreads else ""
    size = np.sqrt(np.mean(changes**2))
    return (
        f"scores now less recorded: {at.estimate:.2f} [{at.low:.2f}, {at.high:.2f}] over "
        f"{len(changes)} cells; they differ by {size:.1f} (root mean square){beside}"
    )


def fingerprints(cells: Sequence[Cell]) -> tuple[dict[str, str], dict[str, str]]:
    """Fingerprints of the datasets on this machine, and of the parts of them that rows learn from,
    by `Row.trained_on`; for each other dataset how to get it."""
    fingerprint_of: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name in sorted({c.row.data for c in cells if c.row.data}):
        try:
            dataset = data.load(name)
            fingerprint_of[name] = fingerprint(dataset)
            rows = [c.row for c in cells if c.row.data == name and c.row.holdout > 0]
            for key, row in {row.trained_on: row for row in rows}.items():
                fingerprint_of[key] = fingerprint(hold_out(dataset, row.holdout)[0])
        except MissingDataError:
            missing[name] = f"{name} is not on this machine: `{getting(name)}` gets it."
        except DataError as problem:  # here, and not as published
            missing[name] = " ".join(str(problem).split())
    return fingerprint_of, missing


def getting(name: str) -> str:
    """The command that records or fetches the dataset `name`."""
    card, tier = find_tier(name)
    if card.made_here(tier):
        return f"python -m experiments collect {card.family} --tiers {tier.name}"
    return f"python -m experiments data fetch {name}"


def describe_all(
    table: Plan,
    cells: list[Cell],
    fingerprint_of: dict[str, str],
    home: Path,
    refused: dict[Path, str] | None = None,
) -> dict[Path, Cell]:
    """Describe the job of each cell whose data are here, in a folder under `home`; the cell of
    each folder. Why a cell cannot be is put into `refused`; without it, `ConfigError` is raised."""
    cell_of: dict[Path, Cell] = {}
    for cell in cells:
        data_fingerprint = fingerprint_of.get(cell.row.data)
        if cell.row.data and data_fingerprint is None:
            continue
        folder = (home / cell.folder(data_fingerprint)).resolve()
        try:
            if not (folder / "config.json").exists():
                _describe(table, cell, data_fingerprint, home, folder)
        except ConfigError as problem:
            if refused is None:
                raise
            refused[folder] = str(problem)
        else:
            cell_of[folder] = cell
    return cell_of


def _describe(
    table: Plan, cell: Cell, data_fingerprint: str | None, home: Path, folder: Path
) -> None:
    if "study" in cell.key:
        study.create(
            cell.key["study"],
            cell.row.settings,
            cell.seed,
            folder,
            home.parent,
            matmul_precision=cell.matmul_precision,
        )
    else:
        assert data_fingerprint is not None
        _describe_run(table, cell, data_fingerprint, home, folder)


def _describe_run(table: Plan, cell: Cell, data_fingerprint: str, home: Path, folder: Path) -> None:
    config = plan.config_of(cell.column, cell.row.data, cell.key["steps"])
    fit, fqe_steps = None, table.fqe_steps
    if fqe_steps and not _values_differ(cell.row.data, data_fingerprint):
        fqe_steps = 0  # the last policy is taken
    if cell.row.holdout == 0:  # a shared fit is one to all episodes
        precision = cell.matmul_precision
        which = fits.FitSettings(
            cell.row.data, cell.seed, matmul_precision=precision, device=table.device
        )
        fit = fits.for_run(which, config, data_fingerprint, home.parent / "fits")
    run_settings = RunSettings(
        cell.column.algorithm,
        cell.row.data,
        steps=cell.key["steps"],
        seed=cell.seed,
        final_episodes=cell.row.final_episodes,
        eval_stochastic=cell.column.eval_stochastic,
        tensorboard=False,
        fqe_steps=fqe_steps,
        holdout=cell.row.holdout,
        until_flat=cell.row.until_flat,
        matmul_precision=cell.matmul_precision,
        device=table.device,
        model=None if fit is None else str(fit),
    )
    runs.create(run_settings, config, folder)


@functools.cache
def _values_differ(name: str, data_fingerprint: str) -> bool:
    """`values_differ` of a dataset, which is read once as long as its fingerprint is the same."""
    return values_differ(data.load(name))
