"""Expressions over the columns of a log, for rewards and end flags: `-abs(next(glucose) - 110)`,
`last and outcome == 'died'`. Only what is listed here is evaluated; nothing of Python's is reached.
"""

import ast
import functools
import re
import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np

from mbrl.data.logs.schema import listing
from mbrl.data.logs.table import WORDS, Table, is_numeric, labels, numbers
from mbrl.errors import DataError

OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide,
    ast.Pow: np.power, ast.Mod: np.mod, ast.FloorDiv: np.floor_divide,
    ast.UAdd: np.positive, ast.USub: np.negative, ast.Not: lambda x: 1 - _truth(x),
    ast.Lt: np.less, ast.LtE: np.less_equal, ast.Gt: np.greater, ast.GtE: np.greater_equal,
    ast.Eq: np.equal, ast.NotEq: lambda a, b: np.not_equal(a, b) & ~(_missing(a) | _missing(b)),
    ast.And: lambda a, b: _either(0.0, a, b), ast.Or: lambda a, b: _either(1.0, a, b),
}  # fmt: skip
# By name: how many values it takes (None: two or more), and what it makes of them.
FUNCTIONS: dict[str, tuple[int | None, Callable[..., Any]]] = {
    "abs": (1, np.abs), "sqrt": (1, np.sqrt), "exp": (1, np.exp), "log": (1, np.log),
    "sign": (1, np.sign), "clip": (3, np.clip),
    "min": (None, lambda *values: functools.reduce(np.minimum, values)),
    "max": (None, lambda *values: functools.reduce(np.maximum, values)),
    "fill": (2, lambda value, other: np.where(np.isnan(value), other, value)),
    "where": (3, lambda condition, yes, no: np.where(_known(condition) == 1, yes, no)),
}  # fmt: skip
SHIFTS = {"next": -1, "previous": 1}
RULE = (
    "columns (in backquotes where a name is no word), numbers, text in quotes, + - * / ** % //, "
    "comparisons (false where a value is missing), and, or, not, "
    + ", ".join([*FUNCTIONS, *SHIFTS])
    + ", and last (true on the last row of an episode)"
)


def _missing(value: Any) -> np.ndarray:
    column = np.asarray(value)
    if column.dtype == object:
        return np.array([cell is None for cell in column.flat], dtype=bool).reshape(column.shape)
    return np.isnan(column) if column.dtype.kind == "f" else np.zeros(column.shape, dtype=bool)


def _truth(value: Any) -> np.ndarray:
    """0, 1, or NaN where it is missing. Raises `ValueError` for other numbers."""
    column = np.asarray(value, dtype=np.float64)
    other = column[~np.isin(column, (0.0, 1.0)) & ~np.isnan(column)]
    if other.size:
        raise ValueError(
            f"{other.flat[0]:g} stands where true or false is asked for; compare it with something"
        )
    return column


def _known(value: Any) -> np.ndarray:
    """0 or 1. Raises `ValueError` where it is missing."""
    column = _truth(value)
    if np.isnan(column).any():
        count = int(np.isnan(column).sum())
        raise ValueError(
            f"{count} row{' has' if count == 1 else 's have'} no value where true or false is "
            "asked for; say what a missing one counts as: fill(column, 0), or compare it (column "
            "== 1 is false there)"
        )
    return column


def _either(decides: float, *values: Any) -> np.ndarray:
    """`decides` where one side has it, whatever the other has, missing where one is missing, else
    the other truth."""
    a, b = map(_truth, values)
    unknown = np.where(np.isnan(a) | np.isnan(b), np.nan, 1.0 - decides)
    return np.where((a == decides) | (b == decides), decides, unknown)


def evaluate(
    option: str,
    text: str,
    table: Table,
    first: np.ndarray,
    last: np.ndarray,
    notes: list[str] | None = None,
) -> np.ndarray:
    """The column or expression `text`, [N] float64. `table` holds rows in time order, episode after
    episode; `first` and `last` [N] mark their ends. `next(x)` is NaN on an episode's last row,
    `previous(x)` on its first. Texts in it that no cell has are added to `notes`. Raises
    `DataError` for anything that is not allowed."""
    if text in table:
        column = table[text]
        if not is_numeric(column) and option in ("terminated", "truncated"):
            label = next(iter(column), None)
            raise DataError(
                f"{option} column {text} holds text; say which means that it ended, such as "
                f"{text} == {label!r}"
            )
        return numbers(f"{option} column {text}", column)
    names: dict[str, str] = {}

    def quoted(match: re.Match[str]) -> str:
        names[f"_column{len(names)}"] = match[1]
        return f" _column{len(names) - 1} "

    try:
        tree = ast.parse(re.sub(r"`([^`]+)`", quoted, text).strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise DataError(
            f"{option} is {text!r}, neither a column nor an expression. Columns: "
            f"{listing(table)}. An expression may have {RULE}"
        ) from None
    reader = _Reader(option, text, table, names, first, last)
    with np.errstate(all="ignore"):
        try:
            value = np.broadcast_to(np.asarray(reader.value(tree.body)), first.shape)
            if notes is not None:
                notes += dict.fromkeys(reader.absent)
            return value.astype(np.float64)
        except (TypeError, ValueError, RecursionError) as problem:
            if isinstance(problem, DataError):
                raise
            raise DataError(f"{option}: {text!r} cannot be computed: {problem}") from problem


class _Reader:
    def __init__(
        self, option: str, text: str, table: Table, names: dict[str, str],
        first: np.ndarray, last: np.ndarray,
    ) -> None:  # fmt: skip
        self.option, self.text, self.table, self.names = option, text, table, names
        self.first, self.last = first, last
        self.absent: list[str] = []  # texts that nothing equals

    def value(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str):
            return node.value if isinstance(node.value, str) else float(node.value)
        if isinstance(node, ast.Name):
            return self.column(self.names.get(node.id) or self.own_name(node.id))
        if isinstance(node, ast.BoolOp) or isinstance(getattr(node, "op", None), ast.Not):
            return _known(self.truth(node))
        if isinstance(node, ast.BinOp | ast.UnaryOp):
            parts = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.operand]
            return self.apply(node.op, *map(self.value, parts))
        if isinstance(node, ast.Compare):
            sides = [self.value(part) for part in (node.left, *node.comparators)]
            value = np.ones(self.first.shape, dtype=bool)
            for operator, left, right in zip(node.ops, sides, sides[1:], strict=False):
                value = value & self.apply(operator, left, right)
            return value.astype(np.float64)  # numpy's sum of two truths is an "or"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return self.call(node.func.id, [self.value(part) for part in node.args])
        raise self.error(f"{ast.unparse(node)!r} is not allowed")

    def truth(self, node: ast.AST) -> Any:
        """0, 1 or NaN: what is missing may still be decided by the other side of an and, an or."""
        if isinstance(node, ast.BoolOp):
            value = self.truth(node.values[0])
            for part in node.values[1:]:
                value = self.apply(node.op, value, self.truth(part))
            return value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.apply(node.op, self.truth(node.operand))
        return self.value(node)

    def apply(self, operator: ast.AST, *values: Any) -> Any:
        if type(operator) not in OPERATORS:
            raise self.error(f"the operator {type(operator).__name__} is not allowed")
        if any(np.asarray(v).dtype.kind in "OU" for v in values) and not isinstance(
            operator, ast.Eq | ast.NotEq
        ):
            raise self.error("text can only be compared by == and !=")
        if isinstance(operator, ast.Eq | ast.NotEq):
            values = self.comparable(*values)
        return OPERATORS[type(operator)](*values)

    def comparable(self, *values: Any) -> tuple[Any, ...]:
        """Numbers as they are; of text the labels, of which 2.0 and 2 are one."""
        columns = [np.asarray(value) for value in values]
        texts = [column for column in columns if column.dtype.kind in "OU"]
        if not texts:
            return values
        known = [column for column in texts if column.ndim]
        numeric = [c for c in columns if c.dtype.kind not in "OU" and not _missing(c).all()]
        if numeric and not known:
            given = str(texts[0].item())
            number = WORDS.get(given.lower(), given)
            raise self.error(
                f"numbers are compared with the text {given!r}; the column was read as numbers "
                f"(true is 1, false is 0): write {number:g} without quotes"
                if isinstance(number, float)
                else f"numbers are compared with the text {given!r}; write a number, without quotes"
            )
        cells = sorted({str(x) for c in known for x in labels(c) if x is not None})
        if numeric:
            raise self.error(
                f"text is compared with a number. The text is {listing(cells, 5)}; put what it is "
                f"compared with in quotes, such as {cells[0] if cells else ''!r}"
            )
        # A column without any cell was taken for numbers; its cells are missing text as well.
        kept = [c if c.dtype.kind in "OU" else np.full(c.shape, None) for c in columns]
        same = [labels(np.atleast_1d(c.astype(object))).reshape(c.shape) for c in kept]
        for constant in (str(c) for c in same if not c.ndim and c.item() is not None):
            if known and constant not in cells:
                listed = listing(cells, 5)
                self.absent.append(
                    f"{self.option}: no cell has the text {constant!r}; there are {listed}"
                )
        return tuple(same)

    def call(self, name: str, values: list[Any]) -> Any:
        if name in SHIFTS:
            if len(values) != 1:
                raise self.error(f"{name} takes one value")
            shifted = np.roll(np.broadcast_to(values[0], self.first.shape), SHIFTS[name])
            edge = self.last if name == "next" else self.first
            return np.where(edge, np.nan, shifted.astype(np.float64))
        if name not in FUNCTIONS:
            raise self.error(f"there is no function {name!r}")
        count, function = FUNCTIONS[name]
        if len(values) != count and (count is not None or len(values) < 2):
            raise self.error(f"{name} takes {count or '2 or more'} values and has {len(values)}")
        return function(*values)

    def own_name(self, name: str) -> str:
        """The column that a bare `name` means, which Python reads in a form of its own (NFKC)."""
        alike = [own for own in self.table if unicodedata.normalize("NFKC", own) == name]
        if len(alike) > 1:
            raise self.error(f"{name!r} may be any of {alike}; put backquotes around the name")
        return alike[0] if alike else name

    def column(self, name: str) -> Any:
        if name in self.table:
            column = self.table[name]
            return numbers(f"column {name}", column) if is_numeric(column) else column
        if name == "last":
            return self.last.astype(np.float64)
        raise self.error(f"there is no column {name!r}; the columns are {listing(self.table)}")

    def error(self, problem: str) -> DataError:
        return DataError(f"{self.option} is {self.text!r}: {problem}. Allowed: {RULE}")
