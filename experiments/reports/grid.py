"""Tables for a terminal, which wrap long text and truncate none."""

from typing import Any

from rich.table import Column, Table


def grid(*names: str, **options: Any) -> Table:
    """A rich table with these columns; names of datasets and algorithms can be copied whole."""
    return Table(*(Column(name, overflow="fold") for name in names), **options)
