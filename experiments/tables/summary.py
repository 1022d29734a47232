"""From the records of a table to its numbers: every seed's score, means, intervals."""

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.tables import records
from experiments.tables.plan import Block, Column, Plan, Row, published_file
from mbrl import statistics
from mbrl.errors import unknown_name
from mbrl.statistics import Interval


@dataclass(frozen=True)
class Published:
    """A score that a paper reports, with how far it was checked against the paper."""

    mean: float
    spread: float | None
    source: str
    evidence: str
    letter: str  # of the source, in the table


@dataclass
class Entry:
    """The seeds of one row and column that have numbers; arrays [seeds], in the plan's order.
    Seeds whose training diverged are in `diverged` alone, each with the reason."""

    seeds: list[int] = field(default_factory=list)
    last: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)  # the highest evaluation, as reported by many
    selected: list[float] = field(default_factory=list)  # at the step that fitted Q chose
    seconds: list[float] = field(default_factory=list)
    model_seconds: list[float] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    changed: bool = False  # the data here have another checksum than some record's
    diverged: dict[int, str] = field(default_factory=dict)
    missing: str | None = None  # why the data are not here
    published: list[Published] = field(default_factory=list)

    @property
    def interval(self) -> Interval:
        """Mean of the last scores with its 95 % interval; NaN where none of them is a number."""
        if np.isnan(self.last).all():
            return Interval(np.nan, np.nan, np.nan)
        return statistics.confidence_interval(np.array(self.last), statistics.mean)


@dataclass(frozen=True)
class BlockSummary:
    block: Block
    entries: dict[tuple[str, str], Entry]  # by row and column label

    def entry(self, row: Row, column: Column) -> Entry:
        return self.entries[row.label, column.label]

    def scores(self, column: Column, kind: str = "last") -> list[np.ndarray]:
        """One array [seeds] for each row, of the `last`, `best` or `selected` scores."""
        return [np.array(getattr(self.entry(row, column), kind)) for row in self.block.rows]

    def complete(self, column: Column) -> bool:
        """Whether every row has at least one finished seed with a number, and all are scores: a
        mean over several datasets of returns or of values says nothing."""
        entries = [self.entry(row, column) for row in self.block.rows]
        last = (entry.last for entry in entries)
        known = all(len(scores) > 0 and not np.isnan(scores).all() for scores in last)
        return known and (len(entries) == 1 or self.units <= {"score"})

    @property
    def units(self) -> set[str]:
        """What the numbers of the block's runs are; see `records.unit`."""
        return {records.unit(r) for e in self.entries.values() for r in e.records if "steps" in r}

    @property
    def unit(self) -> str:
        """The same, for the axis of a figure."""
        names = {"score": "normalised score", "return": "return", "value": "value by fitted Q"}
        return " or ".join(names[u] for u in names if u in self.units)


def records_of(block: BlockSummary) -> dict[str, list[dict[str, Any]]]:
    """Every record of a study's block, by row."""
    if block.block.study is None:
        return {}
    first = block.block.columns[0]
    return {row.label: block.entry(row, first).records for row in block.block.rows}


@dataclass(frozen=True)
class Summary:
    plan: Plan
    blocks: tuple[BlockSummary, ...]


def collect(
    plan: Plan, home: Path, fingerprints: dict[str, str], missing: dict[str, str]
) -> Summary:
    """Read all records of `plan` under `home`. `fingerprints` are those of the data on this machine
    (by `Row.trained_on`), `missing` says how to get the others."""
    letters = "abcdefgh"
    figures = [published(n, letter) for n, letter in zip(plan.published, letters, strict=False)]
    blocks = []
    for block in plan.blocks:
        labels = [(row.label, column.label) for row in block.rows for column in block.columns]
        entries = {label: Entry() for label in labels}
        for cell in plan.cells(block):
            record = records.read(home / cell.path, cell.key)
            if record is not None and "diverged" in record:
                for column in block.columns if block.study else (cell.column,):
                    entries[cell.row.label, column.label].diverged[cell.seed] = record["diverged"]
                continue
            if block.study is not None:
                _add_values(entries, block, cell.row, cell.seed, record)
                continue
            entry = entries[cell.row.label, cell.column.label]
            entry.missing = missing.get(cell.row.data)
            if record is not None:
                _add_run(entry, cell.seed, record, fingerprints.get(cell.row.trained_on))
        for row in block.rows:
            for column in block.columns:
                reported = [
                    f[column.algorithm, row.data]
                    for f in figures
                    if (column.algorithm, row.data) in f
                ]
                entries[row.label, column.label].published = reported
        blocks.append(BlockSummary(block, entries))
    return Summary(plan, tuple(blocks))


def _add_run(entry: Entry, seed: int, record: dict[str, Any], data_fingerprint: str | None) -> None:
    entry.seeds.append(seed)
    entry.last.append(records.last_score(record))
    entry.best.append(float(records.scores(record).max()) if record["steps"] else math.nan)
    entry.selected.append(records.selected_score(record))
    entry.seconds.append(record["seconds"])
    if "model_seconds" in record:
        entry.model_seconds.append(record["model_seconds"])
    entry.records.append(record)
    entry.changed |= data_fingerprint is not None and data_fingerprint != record["fingerprint"]


def _add_values(
    entries: dict[tuple[str, str], Entry],
    block: Block,
    row: Row,
    seed: int,
    record: dict[str, Any] | None,
) -> None:
    if record is None:
        return
    require_metrics(block.metrics, record)
    for column in block.columns:
        entry = entries[row.label, column.label]
        entry.seeds.append(seed)
        entry.last.append(record["values"][column.label])
        entry.seconds.append(record["seconds"])
        entry.records.append(record)


def require_metrics(metrics: Sequence[str], record: dict[str, Any]) -> None:
    """Raise `ConfigError` for a metric that the study of the record did not measure."""
    for name in metrics:
        if name not in record.get("values", metrics):
            raise unknown_name("metric of the study", name, record["values"])


def published(name: str, letter: str) -> dict[tuple[str, str], Published]:
    """Scores of datasets/published/NAME.toml by (algorithm, dataset)."""
    values = tomllib.loads(published_file(name).read_text())
    by_cell = {}
    for algorithm, scores in values["scores"].items():
        for data, score in scores.items():
            mean, spread = score if isinstance(score, list) else (score, None)
            by_cell[algorithm, data] = Published(
                mean, spread, values["source"], values["mark"], letter
            )
    return by_cell
