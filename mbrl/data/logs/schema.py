"""What a user says about the columns of a log."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Literal

import tyro

from mbrl.config import Settings
from mbrl.errors import ConfigError, DataError


def _help(text: str) -> object:
    return tyro.conf.arg(help=text)


@dataclass(frozen=True)
class LogSchema(Settings):
    """Which columns of a table are what. Names may be patterns (`vital_*`) or lists with commas."""

    obs: Annotated[tuple[str, ...], _help("columns observed before acting")] = ()
    action: Annotated[tuple[str, ...], _help("columns of what was done")] = ()
    reward: Annotated[str, _help("a column, or an expression over columns (see docs/data.md)")] = (
        "reward"
    )
    episode: Annotated[str | None, _help("column that says which rows belong together")] = None
    order: Annotated[str | None, _help("column of times or numbers to sort an episode by")] = None
    terminated: Annotated[
        str | None, _help("column or expression: the task ended after this row (no later value)")
    ] = None
    truncated: Annotated[
        str | None, _help("column or expression: the recording stopped after this row")
    ] = None
    last_row: Annotated[
        Literal["truncated", "terminated"],
        _help("what the end of an episode is where neither flag is set"),
    ] = "truncated"
    next_obs: Annotated[
        tuple[str, ...], _help("columns of the next observation, if rows hold them")
    ] = ()
    categorical: Annotated[
        tuple[str, ...], _help("columns whose numbers are labels; text columns always are")
    ] = ()
    behaviour_prob: Annotated[
        str | None, _help("column of the probability with which the action was chosen")
    ] = None
    step: Annotated[
        str | None,
        _help("length of one step in units of `order` (60, 15min, 1h, 1d): discounts by the time "
              "that passes between rows"),
    ] = None  # fmt: skip
    missing: Annotated[
        Literal["refuse", "impute", "drop"],
        _help("missing observations: refuse the log, fill them in with the last value of the "
              "episode (else the median) and add a column that says so, or drop those episodes"),
    ] = "refuse"  # fmt: skip
    units: Annotated[tuple[str, ...], _help("units of columns, as column=unit")] = ()

    @property
    def given(self) -> bool:
        """Whether anything was said about columns."""
        return self != LogSchema()

    def unit_of(self) -> dict[str, str]:
        """Units by column. Raises `ConfigError` for an entry without `=`."""
        units = {}
        for entry in self.units:
            column, sign, unit = entry.rpartition("=")
            if not sign or not column:
                raise ConfigError(f"units has {entry!r}; write column=unit, as in heart_rate=1/min")
            units[column] = unit
        return units


def expand(option: str, wanted: Iterable[str], columns: list[str]) -> tuple[str, ...]:
    """The columns that names, comma-separated names and patterns mean, in the given order. Raises
    `DataError` for one that is not there, or twice there."""
    names: list[str] = []
    for entry in wanted:
        for name in [entry] if entry in columns else entry.split(","):
            name = name.strip()
            matches = [c for c in columns if c == name] or [
                c for c in columns if fnmatchcase(c, name)
            ]
            if not matches:
                raise DataError(
                    f"{option}: no column is called {name!r}; the columns are {listing(columns)}"
                )
            names += matches
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{option}: {listing(twice)} named more than once")
    return tuple(names)


def listing(names: Iterable[str], most: int = 40) -> str:
    """Names with commas between them, shortened where there are very many."""
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
