"""A log read as an earlier one was, so that the two can be compared: with its entries, labels and
fill values, and with what does not fit them counted instead of refused."""

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mbrl import config as configs
from mbrl.data.columns import Options
from mbrl.data.loading import finish, log_source
from mbrl.data.logs import table as tables
from mbrl.data.logs.schema import LogSchema, expand, listing
from mbrl.data.logs.table import Table
from mbrl.data.readers.files import file_hash, read_table
from mbrl.errors import ConfigError, DataError
from mbrl.types import Dataset, Provenance


@dataclass(frozen=True)
class SharedLog:
    """`dataset`: the rows that the earlier encoding fits; `rows`: of the whole table, of which it
    does not fit `unfit`. `new_labels`
    gives by column the share of rows of each label that the earlier log did not have,
    `gone_labels` those that only the earlier one had, `missing` the share of missing cells."""

    dataset: Dataset
    rows: int
    unfit: int = 0
    new_labels: dict[str, dict[str, float]] = field(default_factory=dict)
    gone_labels: dict[str, list[str]] = field(default_factory=dict)
    missing: dict[str, float] = field(default_factory=dict)


def read_as(path: str | Path, known: dict[str, Any]) -> SharedLog:
    """The table in the file `path`, read as the log that `known` (its `Provenance.log`) describes.
    Rows with a label that it did not have, or with a missing value that it has no place for, are
    left out. Raises `DataError` for a table without its columns, or without a row that fits."""
    path = Path(path)
    table = read_table(path)
    schema = configs.from_dict(LogSchema, known["schema"])
    columns = list(dict.fromkeys(entry["column"] for entry in known["obs"]))
    actions = list(known["action"]["columns"])
    absent = [name for name in (*columns, *actions) if name not in table]
    if absent:
        raise DataError(
            f"{path} has no {listing(absent)}, which the policy was trained on; its columns are "
            f"{listing(table)}"
        )
    following = expand("next_obs", schema.next_obs, list(table))
    named = expand("obs", schema.obs, list(table))
    pairs = dict(zip(named, following, strict=False)) if following else {}
    count = len(table[columns[0]])
    left_out = np.zeros(count, dtype=bool)
    new: dict[str, dict[str, float]] = {}
    gone: dict[str, list[str]] = {}
    for column, labels in _labels(known).items():
        bad, new[column], gone[column] = _compare(table[column], labels)
        left_out |= bad
        if column in pairs:
            left_out |= _compare(table[pairs[column]], labels)[0]
    imputed = {e["column"] for e in known["obs"] if e.get("kind") == "missing"}
    for column in columns:
        if column not in imputed:
            left_out |= tables.is_missing(table[column])
    if left_out.all():
        raise DataError(
            f"{path}: every row has a label that the trained policy does not know, or misses a "
            f"value that its observations need: {_words(new)}"
        )
    kept = {name: column[~left_out] for name, column in table.items()}
    source = log_source(
        kept, _options(schema, kept, known), Provenance(str(path), sha256=file_hash(path)), known
    )
    missing = {name: float(tables.is_missing(table[name]).mean()) for name in columns}
    return SharedLog(
        finish(source), count, int(left_out.sum()), {k: v for k, v in new.items() if v},
        {k: v for k, v in gone.items() if v}, missing,
    )  # fmt: skip


def _labels(known: dict[str, Any]) -> dict[str, list[str]]:
    """The labels of every column that has some, actions among them."""
    labels: dict[str, list[str]] = {}
    for entry in known["obs"]:
        if entry.get("kind") == "category":
            labels.setdefault(entry["column"], []).append(entry["label"])
    action = known["action"]
    if "labels" in action:
        labels[action["columns"][0]] = list(action["labels"])
    return labels


def _compare(
    column: np.ndarray, labels: list[str]
) -> tuple[np.ndarray, dict[str, float], list[str]]:
    """Which cells [N] hold a label that is not among `labels`, the share of each of those, and the
    labels that no cell holds."""
    cells = tables.labels(column)
    present = [cell for cell in cells if cell is not None]
    unknown = np.array([cell is not None and cell not in labels for cell in cells], dtype=bool)
    extra = sorted({str(cell) for cell in present} - set(labels))
    shares = {label: float(np.mean([cell == label for cell in cells])) for label in extra}
    return unknown, shares, sorted(set(labels) - {str(cell) for cell in present})


def _words(new: dict[str, dict[str, float]]) -> str:
    texts = [f"{column} is {listing(labels, 5)}" for column, labels in new.items() if labels]
    return "; ".join(texts) or "values are missing"


def _options(schema: LogSchema, table: Table, known: dict[str, Any]) -> Options:
    """Options with bounds wide enough for actions beyond those of the earlier log: they are what a
    comparison is to show."""
    options, action = Options(log=schema), known["action"]
    if "labels" in action:
        return options
    spans = [tables.numbers(f"action {name}", table[name]) for name in action["columns"]]
    low = [min(a, float(np.nanmin(v))) for a, v in zip(action["low"], spans, strict=True)]
    high = [max(a, float(np.nanmax(v))) for a, v in zip(action["high"], spans, strict=True)]
    return replace(options, action_low=tuple(low), action_high=tuple(high), discrete=False)


def compare_logs(known: dict[str, Any], new: dict[str, Any], name: str) -> None:
    """Raise `ConfigError` where the log called `name` has a column in other units than the `known`
    one of a run (`Provenance.log` of both), and warn where it has other numbers in the place of
    missing ones."""
    before, now = (log.get("units", {}) for log in (known, new))
    for column in before.keys() & now.keys():
        if before[column] != now[column]:
            raise ConfigError(
                f"{column} is in {now[column]} in {name} and in {before[column]} in the data of "
                "the run; convert it"
            )
    mine, fills = ({e["name"]: e.get("fill") for e in log.get("obs", [])} for log in (known, new))
    other = [
        f"{column}: {fill:g}, before {mine[column]:g}"
        for column, fill in fills.items()
        if fill is not None and mine.get(column) not in (None, fill)
    ]
    if other:
        warnings.warn(
            f"{name} has other numbers in the place of missing ones than the data of the run "
            f"({'; '.join(other)}); give the log itself, which is read as that was: LOG.csv",
            stacklevel=2,
        )
