"""What the file of a table asks to be compared (`[[compared]]`): rows of a study, or columns of a
table of runs."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mbrl.errors import ConfigError, unknown_name


@dataclass(frozen=True)
class Compared:
    """Rows of a study whose `numbers` are compared with those of the row `than`, seed by seed, or
    with no row (None); a pair of numbers is the first less the second of the same run.
    `return@0.1` is the curve `return` after a tenth of its points."""

    rows: tuple[str, ...]
    than: str | None
    numbers: tuple[str | tuple[str, str], ...]
    digits: int = 1  # after the point
    pooled: tuple[tuple[str, str | None], ...] = ()  # rows, and others, whose mean counts instead


def column_pairs(values: dict[str, Any], labels: Sequence[str]) -> Iterator[tuple[str, str]]:
    """One entry of the file of a table of runs, whose columns are called `labels`: each of its
    `columns` with `than`. Raises `ConfigError` for a column that the table does not have, and for
    one that is compared with itself."""
    if not isinstance(values.get("than"), str) or not values.get("columns"):
        raise ConfigError(f"compared is {values}; give columns (a list of labels) and than (one)")
    than = values["than"]
    for label in (than, *values["columns"]):
        if label not in labels:
            raise unknown_name("column that is compared", label, labels)
    if than in values["columns"]:
        raise ConfigError(
            f"columns that are compared with {than!r} have it among them; leave it out"
        )
    yield from ((label, than) for label in values["columns"])


def comparisons(
    values: dict[str, Any], labels: Sequence[str], metrics: Sequence[str]
) -> Iterator[Compared]:
    """One entry of a table's file, whose rows are called `labels` and whose numbers `metrics`.
    A row with `*` stands for all labels that match, and what its stars stand for is put in the
    place of those of `than`; labels whose other row is not in the table are left out. With `pooled`
    the mean of those that have the most seeds is compared, and not each. Raises `ConfigError` for a
    row or number that the table does not have."""
    rows, than = tuple(values["rows"]), values.get("than")
    given = [n if isinstance(n, list) else [n] for n in values.get("numbers", metrics[:1])]
    if than is not None and any(len(names) > 1 for names in given):
        raise ConfigError(
            f"numbers is {values['numbers']} beside than = {than!r}; pairs are of one row: leave "
            "out `than`, or give single numbers"
        )
    for number in (name for names in given for name in names):
        if not re.search(r".@(0(\.\d+)?|1)$", number) and number not in metrics:
            raise unknown_name("number that is compared", number, metrics)
    if any(len(names) not in (1, 2) for names in given):
        raise ConfigError(f"numbers is {values['numbers']}; give names, or pairs of names")
    numbers = tuple(names[0] if len(names) == 1 else (names[0], names[1]) for names in given)
    digits = values.get("digits", 1)
    plain = tuple(row for row in rows if "*" not in row)
    for row in (*plain, *([] if than is None or not plain else [than])):
        if row not in labels:
            raise unknown_name("row that is compared", row, labels)
    if plain and values.get("pooled"):
        raise ConfigError(f"pooled is of rows that match a pattern, {plain[0]!r} is one row; put *")
    if plain:
        yield Compared(plain, than, numbers, digits)
    for pattern in (row for row in rows if "*" in row):
        pairs = list(_pairs(pattern, than, labels))
        if not pairs:
            raise ConfigError(
                f"no row matches {pattern!r}"
                + ("" if than is None else f" beside {than!r}")
                + f"; rows are {', '.join(map(repr, labels[:5]))}, ..."
            )
        if values.get("pooled"):
            yield Compared((pattern,), than, numbers, digits, tuple(pairs))
            continue
        for row, other in pairs:
            yield Compared((row,), other, numbers, digits)


def _pairs(
    pattern: str, than: str | None, labels: Sequence[str]
) -> Iterator[tuple[str, str | None]]:
    """The labels that match, each with the label of `than`, in which the texts of the stars are
    put where it has stars itself."""
    shape = re.compile("(.*)".join(map(re.escape, pattern.split("*"))))
    parts = [] if than is None else than.split("*")
    if len(parts) > 1 and len(parts) - 1 != pattern.count("*"):
        raise ConfigError(
            f"than is {than!r}; give it no star, or as many as {pattern!r} has: "
            f"{pattern.count('*')}"
        )
    for label in labels:
        if (match := shape.fullmatch(label)) is None:
            continue
        other = than
        if len(parts) > 1:
            other = "".join(p + t for p, t in zip(parts, (*match.groups(), ""), strict=True))
        if other is None or other in labels:
            yield label, other
