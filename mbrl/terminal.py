"""The terminal, on which all is printed as it is."""

from rich.console import Console


def terminal(*, error: bool = False, width: int | None = None) -> Console:
    """A console on which square brackets are text: in names of files, and in intervals like
    [nan, 1], rich would take them for a style and leave them out. `error`: standard error."""
    return Console(stderr=error, markup=False, width=width)
