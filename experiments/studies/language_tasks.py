"""Language models trained on rewards, and on further demonstrations for the same time, from one
warm start."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments.reports import figures
from experiments.studies import language_training
from mbrl import statistics

VERSION = 1
DEFAULTS = language_training.DEFAULTS | {"looks": 10, "samples": 8}
needs, measure = language_training.needs, language_training.measure


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Accuracy on trained and other levels against the share of the run; and the gains in points;
    without runs that diverged."""
    rows = {
        label: kept
        for label, records in rows.items()
        if (kept := [r for r in records if np.isfinite(r["values"]["score"])])
    }
    if not rows:
        return []
    files = [folder / f"{name}{suffix}.png" for name in ("trained", "other", "gains")]
    for name, file in (("score", files[0]), ("score_other", files[1])):
        panels = figures.by_label(rows, _shares, figures.column(name))
        figures.curves(panels, "% of the run", "accuracy in %", file)
    gains = {
        title: {
            label: statistics.confidence_interval(
                np.array([r["values"][name] for r in records]), statistics.mean
            )
            for label, records in rows.items()
        }
        for title, name in (("trained levels", "gain"), ("other levels", "gain_other"))
    }
    figures.intervals(gains, files[2], "gain in points, mean")
    return files


def _shares(record: dict[str, Any]) -> list[float]:
    steps = record["curves"]["step"]
    return [100 * s / max(1.0, record["values"]["steps"]) for s in steps]
