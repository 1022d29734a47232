"""From the columns of a log to numbers: observations with a name an entry, and actions."""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from mbrl.data.checks import PRECISION
from mbrl.data.logs import table as tables
from mbrl.data.logs.schema import listing
from mbrl.data.logs.table import Table
from mbrl.errors import DataError

NUMBER = r"[+-]?[\d.]+(e[+-]?\d+)?"
# 1,234.5, 0,5, 12%, 1 234 and 1'234
MARKED = (
    r"[+-]?\d[\d.,]*,\d[\d.,]*|[+-]?\d[\d.,]* ?%|[+-]?\d{1,3}([ '\u00a0\u202f]\d{3})+([.,]\d+)?"
)
MOST_LABELS = 50  # of a categorical observation
MOST_ACTIONS = 20  # whole numbers with more different values are taken for continuous


@dataclass(frozen=True)
class Entry:
    """One entry of an observation: the number in `column`, 1 where `column` has the label `label`,
    or 1 where it is missing. `fill` stands for a missing number."""

    name: str
    column: str
    kind: Literal["number", "category", "missing"] = "number"
    label: str | None = None
    fill: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if v is not None}


def fit_entries(
    columns: Sequence[str], table: Table, categorical: Sequence[str], *, impute: bool
) -> list[Entry]:
    """The entries of an observation from `columns`, in their order: a number each, or one for each
    label; behind a column with missing values, where they are imputed, one that says so."""
    entries = []
    for name in columns:
        column = table[name]
        missing = tables.is_missing(column)
        if missing.all():
            raise DataError(f"obs {name}: every value is missing; leave the column out")
        if name in categorical or not (tables.is_numeric(column) or column.dtype.kind == "M"):
            if name not in categorical:
                _require_text(f"obs {name}", column)
            texts = sorted({str(cell) for cell in tables.labels(column) if cell is not None})
            if len(texts) > MOST_LABELS:
                raise DataError(
                    f"obs {name} holds {len(texts)} different texts ({listing(texts, 3)}); up to "
                    f"{MOST_LABELS} become a column each. Group them, or give a number instead"
                )
            entries += [Entry(f"{name}={label}", name, "category", label) for label in texts]
        else:
            values = tables.numbers(f"obs {name}", column)
            _require_precision(name, values[~missing])
            fill = float(np.median(values[~missing])) if impute and missing.any() else None
            entries.append(Entry(name, name, fill=fill))
        if impute and missing.any():
            entries.append(Entry(f"{name} (missing)", name, "missing"))
    return entries


def _require_text(name: str, column: np.ndarray) -> None:
    """Refuse text that is mostly numbers, which a stray cell would make a label each."""
    cells = tables.labels(column)
    labels = {str(cell) for cell in cells if cell is not None}
    other = sorted(label for label in labels if not re.fullmatch(NUMBER, label))
    marked = sorted(label for label in other if re.fullmatch(MARKED, label))
    if marked and 2 * len(marked) >= len(labels):
        raise DataError(
            f"{name} holds numbers with commas, spaces or per cent signs: {listing(marked, 3)}. "
            "Write them as plain numbers (1234.5, 0.12), or name the column in categorical where "
            "each is a label"
        )
    if 2 * len(other) < len(labels):
        row = next(i for i, cell in enumerate(cells) if cell == other[0]) if other else 0
        raise DataError(
            f"{name} holds numbers and text: {listing(other or sorted(labels), 3)}, first in row "
            f"{row}. Leave missing cells empty, or name the column in categorical where each is a "
            "label"
        )


def _require_precision(name: str, values: np.ndarray) -> None:
    """Refuse numbers that float32, in which all is computed, cannot tell apart."""
    spread = float(values.std()) if values.max() > values.min() else 0.0
    if spread > 0 and np.abs(values.astype(np.float32) - values).max() > PRECISION * spread:
        raise DataError(
            f"obs {name} lies near {np.median(values):.6g} and varies by {spread:.3g} only, which "
            "32-bit numbers do not keep; subtract an offset first (times: since the episode began)"
        )


def encode(
    entries: Sequence[Entry],
    table: Table,
    episode: np.ndarray,
    *,
    rename: dict[str, str],
    before: np.ndarray | None = None,
) -> np.ndarray:
    """Observations [N, S] float64, NaN where a value is missing and not to be filled in. A missing
    number with a `fill` takes the last one of the same `episode` [N], else `fill`; with `before`
    [N, S], the observations that these follow, that of `before`. `rename` gives the column to read
    instead of an entry's own. Raises `DataError` for a label that no entry has."""
    parts = []
    for place, entry in enumerate(entries):
        column = table[rename.get(entry.column, entry.column)]
        missing = tables.is_missing(column)
        imputed = any(e.column == entry.column and e.kind == "missing" for e in entries)
        if entry.kind == "missing":
            value = missing.astype(np.float64)
        elif entry.kind == "category":
            value = (tables.labels(column) == entry.label).astype(np.float64)
            if not imputed:
                value[missing] = np.nan
        else:
            value = tables.numbers(f"obs {entry.column}", column)
            if entry.fill is not None and before is not None:
                value = np.where(np.isnan(value), before[:, place], value)
            elif entry.fill is not None:
                value = fill_forward(value, episode, entry.fill)
        parts.append(value)
    for column_name in dict.fromkeys(e.column for e in entries if e.kind == "category"):
        known = {e.label for e in entries if e.column == column_name and e.kind == "category"}
        cells = tables.labels(table[rename.get(column_name, column_name)])
        require_labels(f"obs {column_name}", cells, known)
    return np.stack(parts, axis=1)


def fill_forward(values: np.ndarray, episode: np.ndarray, start: float) -> np.ndarray:
    """NaNs of `values` [N] replaced by the last number before them in the same episode, or by
    `start` where there is none."""
    rows = np.arange(len(values))
    known = np.where(np.isnan(values), -1, rows)
    latest = np.maximum.accumulate(known)
    same = (latest >= 0) & (episode[np.maximum(latest, 0)] == episode)
    return np.where(same, values[np.maximum(latest, 0)], start)


def require_labels(what: str, cells: np.ndarray, known: set[str | None]) -> None:
    """Raise `DataError` for a label that is not known."""
    for row, cell in enumerate(cells):
        if cell is not None and cell not in known:
            raise DataError(
                f"{what} is {cell!r} in row {row}; the labels it had before are "
                f"{listing(sorted(str(k) for k in known))}"
            )


@dataclass(frozen=True)
class Actions:
    """Actions [N, A] float64, or [N] int64 with the label of each number; NaN and -1 where a value
    is missing."""

    values: np.ndarray
    labels: tuple[str, ...] = ()
    note: str = ""


def read_actions(
    columns: Sequence[str],
    table: Table,
    categorical: Sequence[str],
    discrete: bool | None,
    known: Sequence[str] = (),
) -> Actions:
    """The actions in `columns`. One column of text, of true and false, or of few whole numbers is
    discrete unless `discrete` says otherwise; `known` are the labels where they are known."""
    column = table[columns[0]]
    text = [n for n in columns if n in categorical or not tables.is_numeric(table[n])]
    if len(columns) > 1 and (text or discrete):
        raise DataError(
            f"action has {len(columns)} columns and {listing(text) or 'they'} would be discrete; "
            "discrete actions are one column: write their combinations into one"
        )
    if text and discrete is False:
        raise DataError(f"action {text[0]} holds text, which cannot be a continuous action")
    note, few = "", False
    if len(columns) == 1 and not text and discrete is None and tables.is_whole(column):
        count = len({str(cell) for cell in tables.labels(column) if cell is not None})
        few = count <= MOST_ACTIONS
        kind = "discrete" if few else "continuous"
        note = (
            f"action {columns[0]} holds {count} different whole numbers: taken as {kind}; "
            f"--discrete {not few} says otherwise"
        )
    elif len(columns) == 1 and not text and discrete is None:
        note = _decimals(columns[0], column)
    if text and columns[0] not in categorical:
        _require_text(f"action {columns[0]}", column)
    if not (text or discrete or few or known):
        names = [f"action {name}" for name in columns]
        parts = [tables.numbers(n, table[c]) for n, c in zip(names, columns, strict=True)]
        return Actions(np.stack(parts, axis=1), note=note)
    cells = tables.labels(column)
    texts = tuple(known) or _sorted({str(c) for c in cells if c is not None})
    require_labels(f"action {columns[0]}", cells, set(texts))
    if len(texts) < 2:
        raise DataError(
            f"action {columns[0]} is {listing(texts) or 'missing'} in every row; with one action "
            "there is nothing to choose"
        )
    number = {label: i for i, label in enumerate(texts)}
    values = np.array([-1 if c is None else number[c] for c in cells], dtype=np.int64)
    return Actions(values, texts, note)


def _decimals(name: str, column: np.ndarray) -> str:
    """A note where numbers could be those of actions but are written as if they were amounts."""
    cells = {str(cell) for cell in tables.labels(column) if cell is not None}
    if len(cells) > MOST_ACTIONS or not all(float(cell).is_integer() for cell in cells):
        return ""
    return (
        f"action {name} holds {len(cells)} different whole numbers that are written with "
        "decimals: taken as continuous; --discrete True says otherwise"
    )


def _sorted(texts: set[str]) -> tuple[str, ...]:
    """Numbers by size, text by the alphabet, false before true."""
    key: Callable[[str], Any] = str
    try:
        {float(label) for label in texts}
        key = float
    except ValueError:
        pass
    return tuple(sorted(texts, key=key))
