"""Sentences about learners of goals, computed from the records of a table."""

import numpy as np

from experiments.tables.language_conclusions import span
from experiments.tables.summary import Summary, records_of
from mbrl import statistics

PAIRS = (
    ("saw", "hiql"),
    ("saw", "gcivl"),
    ("saw", "gcbc"),
    ("hiql", "gcivl"),
    ("gcivl", "gcbc"),
    ("gciql", "gcivl"),
    ("contrastive_rl", "gcbc"),
    ("smore", "gcbc"),
    ("smore", "gciql"),
)
NUMBERS = ("success", "far", "path")


def goals(summary: Summary) -> list[str]:
    """Of every pair of learners the mean over datasets of the mazes of their difference, each the
    mean over the seeds that both have, with its interval over the datasets."""
    values: dict[str, dict[str, dict[int, dict[str, float]]]] = {}
    for block in summary.blocks:
        for label, records in records_of(block).items():
            data, _, learner = label.partition(", ")
            by_seed = {r["key"]["seed"]: r["values"] for r in records}
            if by_seed and not data.startswith("blocks"):
                values.setdefault(data, {})[learner] = by_seed
    lines = []
    for first, second in PAIRS:
        parts = []
        for name in NUMBERS:
            each = []
            for known in values.values():
                ours, theirs = known.get(first, {}), known.get(second, {})
                both = sorted(ours.keys() & theirs.keys())
                if both:
                    each.append(float(np.mean([ours[s][name] - theirs[s][name] for s in both])))
            if len(each) > 1:
                at = statistics.confidence_interval(np.array(each), statistics.mean)
                parts.append(f"{name} {span(at)}")
        if parts:
            lines.append(f"{first} less {second} over {len(each)} datasets: {', '.join(parts)}.")
    return lines
