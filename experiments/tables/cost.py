"""Estimated cost of the missing cells of a table, from recorded cells and the table's budget."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.tables.plan import Cell


def sentence(cells: Sequence[Cell], home: Path, workers: int) -> str:
    """Number of missing cells; seconds of the longest and hours of all with `workers` side by side,
    by recorded cells of the same kind; and the same by the budget in the table's file."""
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
    """Median seconds for a unit of work of each kind of cell under `home`."""
    rates: dict[str, list[float]] = {}
    for file in home.rglob("*.json"):
        record = json.loads(file.read_text())
        key = record.get("key")
        if key is not None:
            seconds = record["seconds"] + record.get("shared_seconds", 0.0)
            rates.setdefault(_kind(key), []).append(seconds / _size(key))
    return {kind: float(np.median(values)) for kind, values in rates.items()}


def _kind(key: dict[str, Any]) -> str:
    """The algorithm; or the study with the settings that its cost depends on."""
    if "algorithm" in key:
        return str(key["algorithm"])
    names = ("algorithm", "critics", "task", "learner", "agent")
    return " ".join([key["study"], *(str(key["settings"].get(name)) for name in names)])


def _size(key: dict[str, Any]) -> float:
    settings = key.get("settings", key)
    return float(settings.get("steps") or settings.get("updates") or 1)
