"""A log as a table: named columns of numbers, or of text with None where a cell is empty."""

import csv
import math
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from mbrl.errors import DataError

Table = dict[str, np.ndarray]

EMPTY = {"", "na", "n/a", "nan", "null"}  # cells of text that mean "not recorded"
WORDS = {"true": 1.0, "false": 0.0}
POINT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")  # a number with a decimal point
UNITS = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def read_text_table(path: Path) -> Table:
    """The columns of a CSV file, cells as text. The separator is the one of comma, semicolon, tab
    and bar that the header has most of. Raises `DataError` for rows of another length."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        head = file.readline()
        file.seek(0)
        separator = max(",;\t|", key=head.count)
        rows = csv.reader(file, delimiter=separator, strict=True)
        header = [name.strip() for name in next(rows, [])]
        body = [row for row in rows if row]
    twice = sorted({name for name in header if header.count(name) > 1})
    if not header or twice or "" in header:
        problem = f"{', '.join(twice)} twice" if twice else "an empty name"
        raise DataError(
            f"{path}: the first line must name the columns, each once; it has {problem}"
        )
    for number, row in enumerate(body):
        if len(row) != len(header):
            raise DataError(
                f"{path}: row {number} has {len(row)} cells, the header has {len(header)}"
            )
    columns = zip(*body, strict=True) if body else [()] * len(header)
    # A comma may be the decimal sign, unless a point is.
    comma = separator != "," and not any(POINT.fullmatch(c.strip()) for row in body for c in row)
    table = {}
    for name, cells in zip(header, columns, strict=True):
        text = [cell.strip() for cell in cells]
        if comma:
            text = _decimal_points(text)
        table[name] = np.array(
            [None if cell.lower() in EMPTY else cell for cell in text], dtype=object
        )
    return table


def _decimal_points(cells: list[str]) -> list[str]:
    number = re.compile(r"[+-]?\d+(,\d+)?([eE][+-]?\d+)?")
    if all(number.fullmatch(cell) for cell in cells if cell.lower() not in EMPTY):
        return [cell.replace(",", ".") for cell in cells]
    return cells


def read_parquet_table(path: Path, *, nested: bool = False) -> Table:
    """The columns of a Parquet file; those that hold lists as they are, if `nested`."""
    import pyarrow.parquet as parquet

    with path.open("rb") as file:
        table = parquet.read_table(file)
    columns = {str(name): _plain(table.column(name)) for name in table.column_names}
    lists = (list, np.ndarray)
    return {
        name: column if nested and len(column) and isinstance(column[0], lists) else clean(column)
        for name, column in columns.items()
    }


def _plain(column: Any) -> np.ndarray:
    """A column of Parquet as an array; categories as their cells, since of the codes alone NumPy
    makes labels where cells are missing."""
    import pyarrow as arrow

    if arrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    array: np.ndarray = column.to_numpy()
    return array


def table_of(frame: Any) -> Table:
    """The columns of a data frame (pandas, polars) or of a mapping of arrays. Raises `DataError`
    for anything else, or columns of different lengths."""
    try:
        names = [str(name) for name in (frame.columns if hasattr(frame, "columns") else frame)]
        if len(set(names)) < len(names):
            raise DataError(f"the table has two columns of one name; its columns are {names}")
        table = {name: _column(frame[name]) for name in names}
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        if isinstance(problem, DataError):
            raise
        raise DataError(f"not a table with named columns: {problem}") from problem
    lengths = {name: len(column) for name, column in table.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"the columns differ in length: {lengths}")
    return table


def _column(values: Any) -> np.ndarray:
    if isinstance(values, np.ma.MaskedArray):
        cells = np.array(values.data, dtype=object)
        cells[np.ma.getmaskarray(values)] = None
        return clean(cells)
    return clean(values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values))


def clean(array: np.ndarray) -> np.ndarray:
    """Numbers and dates as they are, lengths of time in seconds; anything else as text or None."""
    if array.ndim != 1:
        raise DataError(f"a column has shape {array.shape}; a column has one value a row")
    if array.dtype.kind == "m":  # seconds
        seconds = array.astype("timedelta64[us]").astype(np.float64) / 1e6
        return np.where(np.isnat(array), np.nan, seconds)
    if array.dtype.kind in "biufM":
        return array
    decoded = [c.decode("utf-8", "replace") if isinstance(c, bytes) else c for c in array.tolist()]
    cells: list[Any] = [None if _is_missing(cell) else cell for cell in decoded]
    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds and kinds <= {int, float, bool}:
        if None in cells or float in kinds:
            return np.array([math.nan if cell is None else float(cell) for cell in cells])
        return np.array(cells)
    return np.array([None if cell is None else str(cell).strip() for cell in cells], dtype=object)


def _is_missing(cell: Any) -> bool:
    """None, NaN, pandas' NA and NaT, and the text of an empty cell."""
    if isinstance(cell, str):
        return cell.strip().lower() in EMPTY
    return cell is None or type(cell).__name__ in ("NAType", "NaTType") or cell != cell


def is_missing(column: np.ndarray) -> np.ndarray:
    """[N] bool."""
    if column.dtype == object:
        return np.array([cell is None for cell in column], dtype=bool)
    if column.dtype.kind == "M":
        return np.asarray(np.isnat(column))
    return np.isnan(column) if column.dtype.kind == "f" else np.zeros(len(column), dtype=bool)


def numbers(name: str, column: np.ndarray) -> np.ndarray:
    """A column as float64, NaN where a cell is missing; `true` and `false` are 1 and 0. Raises
    `DataError` for a cell that is no number, or an infinite one."""
    if column.dtype.kind == "M":
        raise DataError(f"{name} holds dates, not numbers; give the time since some event instead")
    if column.dtype != object:
        values = column.astype(np.float64)
    else:
        values = np.empty(len(column))
        for row, cell in enumerate(column):
            if cell is None:
                values[row] = np.nan
                continue
            try:
                values[row] = WORDS[cell.lower()] if cell.lower() in WORDS else _number(cell)
            except ValueError:
                raise DataError(f"{name} is {cell!r} in row {row}, which is not a number") from None
    if np.isinf(values).any():
        row = int(np.argmax(np.isinf(values)))
        raise DataError(f"{name} is {values[row]} in row {row}; values must be finite")
    return values


def is_numeric(column: np.ndarray) -> bool:
    """Whether every cell that is there is a number, or true or false."""
    if column.dtype != object:
        return column.dtype.kind in "biuf"
    for cell in column:
        if cell is None or cell.lower() in WORDS:
            continue
        try:
            _number(cell)
        except ValueError:
            return False
    return True


def _number(cell: str) -> float:
    """Raises `ValueError` for what is no number, such as 1_1, which Python takes for 11."""
    if "_" in cell:
        raise ValueError
    return float(cell)


def is_whole(column: np.ndarray) -> bool:
    """Whether the cells are whole numbers and written as such (`2`, not `2.0`)."""
    if column.dtype != object:
        return column.dtype.kind in "biu"
    words = [cell for cell in column if cell is not None]
    return all(re.fullmatch(r"[+-]?\d{1,15}", w) or w.lower() in WORDS for w in words)


def labels(column: np.ndarray) -> np.ndarray:
    """A column as text, None where a cell is missing; 2.0 and 2 are the same label."""
    missing = is_missing(column)

    def text(value: Any) -> str:
        if isinstance(value, str):
            return re.sub(r"^([+-]?\d+)\.0*$", r"\1", value) if "." in value else value
        return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)

    cells = [None if m else text(v) for v, m in zip(column.tolist(), missing, strict=True)]
    return np.array(cells, dtype=object)


def times(name: str, column: np.ndarray) -> np.ndarray:
    """A column of numbers or of ISO dates as float64 (dates as seconds since 1970), NaN where a
    cell is missing. Raises `DataError` for other text."""
    if column.dtype.kind == "M":
        seconds = column.astype("datetime64[us]").astype(np.float64) / 1e6
        return np.where(np.isnat(column), np.nan, seconds)
    if is_numeric(column):
        return numbers(name, column)
    values = np.full(len(column), np.nan)
    for row, cell in enumerate(column):
        if cell is None:
            continue
        try:
            stamp = np.datetime64(_without_offset(cell), "us")
        except ValueError:
            raise DataError(
                f"{name} is {cell!r} in row {row}, neither a number nor an ISO date "
                "(2024-05-31 or 2024-05-31T08:15:00)"
            ) from None
        values[row] = np.nan if np.isnat(stamp) else stamp.astype(np.int64) / 1e6
    return values


def _without_offset(cell: str) -> str:
    """An ISO date in UTC, with a T and no Z or offset."""
    text = cell.replace(" ", "T").removesuffix("Z").removesuffix("z")
    if re.search(r"T.*[+-]\d\d(:?\d\d)?$", text):
        return datetime.fromisoformat(text).astimezone(UTC).replace(tzinfo=None).isoformat()
    return text


def has_dates(column: np.ndarray) -> bool:
    return column.dtype.kind == "M" or not is_numeric(column)


def step_length(text: str, dates: bool) -> float:
    """60, or 15min, 1h, 1d where times are dates, as a number. Raises `DataError` otherwise."""
    match = re.fullmatch(r"\s*([\d.]+(?:e-?\d+)?)\s*([a-z]*)\s*", text)
    try:
        size = float(match[1]) if match else 0.0
    except ValueError:
        size = 0.0
    unit = match[2] if match else ""
    if size <= 0 or (unit and (unit not in UNITS or not dates)):
        allowed = f"a number with {', '.join(UNITS)}" if dates else "a number above 0"
        raise DataError(f"step is {text!r}; with this order column it must be {allowed}")
    return size * UNITS[unit] if unit else size
