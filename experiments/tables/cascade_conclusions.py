"""Sentences about domains in turn, computed from the records of a table."""

import numpy as np

from experiments.studies.cascades import PARTS
from experiments.tables.language_conclusions import span
from experiments.tables.summary import Summary, records_of
from mbrl import statistics

BLEND = "blend"


def cascades(summary: Summary) -> list[str]:
    """What every row forgot of every part, and its mean gain beside the blend's; then the smallest
    difference that these intervals could tell from 0."""
    lines = []
    for block in summary.blocks:
        rows = {label: records for label, records in records_of(block).items() if records}
        gains = {n: np.array([r["values"]["gain_all"] for r in own]) for n, own in rows.items()}
        for label, own in rows.items():
            said = []
            for name in PARTS:
                values = np.array([r["values"][f"forgotten_{name}"] for r in own])
                said.append(
                    f"{span(statistics.confidence_interval(values, statistics.mean))} of {name}"
                )
            lines.append(f"{label}: forgot {' and '.join(said)} points.")
        several = {label: [own] for label, own in gains.items() if len(own) > 1}
        if BLEND not in several or len(several) < 2:
            continue
        compared = statistics.paired_comparison(several, BLEND)
        for label, comparison in compared.items():
            lines.append(f"{label} less {BLEND}, mean gain: {span(comparison.difference)} points.")
        half = sorted((c.difference.high - c.difference.low) / 2 for c in compared.values())
        seeds = min(len(own[0]) for own in several.values())
        lines.append(
            f"With {seeds} seeds a difference of mean gains to {BLEND} shows from {half[0]:.1f} to "
            f"{half[-1]:.1f} points on, row by row."
        )
    return lines
