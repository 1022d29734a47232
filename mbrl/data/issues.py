"""One thing found in a dataset: an error refuses it, a warning is worth a look, a note is
remembered in the provenance."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mbrl.errors import DataError


@dataclass(frozen=True)
class Finding:
    """`severity` is "error", "warning" or "note"; `row` the first row concerned and `share` the
    part of all rows, where that makes sense."""

    severity: str
    message: str
    row: int | None = None
    share: float | None = None


def _share(bad: np.ndarray | None) -> float | None:
    return None if bad is None or not len(bad) else float(bad.mean())


def error(message: str, row: int | None = None, bad: np.ndarray | None = None) -> Finding:
    return Finding("error", message, row, _share(bad))


def warning(message: str, row: int | None = None, bad: np.ndarray | None = None) -> Finding:
    return Finding("warning", message, row, _share(bad))


def note(message: str, row: int | None = None, bad: np.ndarray | None = None) -> Finding:
    return Finding("note", message, row, _share(bad))


def has_error(findings: Iterable[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


def raise_errors(findings: Iterable[Finding], source: str) -> None:
    """Raise the errors, one a line, as one `DataError` that names `source`."""
    errors = [finding.message for finding in findings if finding.severity == "error"]
    if len(errors) == 1:
        raise DataError(f"{source}: {errors[0]}")
    if errors:
        raise DataError("\n  ".join([f"{source}: {len(errors)} problems", *errors]))
