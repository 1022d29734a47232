"""What the missing cells of a table will cost, from what recorded ones took and its file allows."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.tables.plan import Cell


def sentence(cells: Sequence[Cell], home: Path, workers: int) -> str:
    """Number of cells to do and, as far as recorded cells of their kind tell, the time: seconds a
    cell at most and hours for all with `workers` side by side; then the same of the budget that
    the table's file states."""
    rates = _rates(home)
    known = [rates[_kind(c.key)] * _size(c.key) for c in cells if _kind(c.key) in rates]
    text = f"{len(cells)} cells to do"
    if not cells:
        return text
    if known:
        total = sum(known) * len(cells) / len(known) / max(1, workers)
        text += (
            f"; by recorded cells of their kind at most about {max(known):.0f} s each and "
            f"{total / 3600:.1f} h in all with {workers} side by side"
        )
    unknown = len(cells) - len(known)
    if unknown:
        text += f"; {unknown} are of a kind that has no record to go by"
    allowed = [c.row.seconds for c in cells if c.row.seconds is not None]
    if allowed:
        hours = sum(allowed) / 3600 / max(1, workers)
        each = f"at most {max(allowed):.0f} s each"
        text += f"; budget of {len(allowed)}: {each} and {hours:.1f} h in all"
    return text


def _rates(home: Path) -> dict[str, float]:
    """Median seconds a unit of work of every kind of cell under `home`."""
    found: dict[str, list[float]] = {}
    for file in home.rglob("*.json"):
        record = json.loads(file.read_text())
        key = record.get("key")
        if key is not None:
            seconds = record["seconds"] + record.get("shared_seconds", 0.0)
            found.setdefault(_kind(key), []).append(seconds / _size(key))
    return {kind: float(np.median(values)) for kind, values in found.items()}


def _kind(key: dict[str, Any]) -> str:
    """An algorithm; a study with what makes its cells differ in cost."""
    if "algorithm" in key:
        return str(key["algorithm"])
    names = ("algorithm", "critics", "task", "learner", "agent")
    return " ".join([key["study"], *(str(key["settings"].get(name)) for name in names)])


def _size(key: dict[str, Any]) -> float:
    settings = key.get("settings", key)
    return float(settings.get("steps") or settings.get("updates") or 1)
