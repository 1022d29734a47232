"""Differences between two rows of a study, paired by seed, as sentences under its table."""

import numpy as np

from experiments.tables.language_conclusions import span
from experiments.tables.summary import Summary, records_of
from mbrl import statistics

# By table: the numbers that are compared, and pairs of rows, the first less the second.
RECOVERY = (
    ("rac", "full demonstrations"),
    ("correct (HG-DAgger)", "full demonstrations"),
    ("rac", "correct (HG-DAgger)"),
    ("rac", "rac without ends"),
    ("rac without ends", "correct (HG-DAgger)"),
)
COMPARED = {
    "recovery": (
        ("success 1", "success 2", "success 4"),
        (*RECOVERY, *((f"slide: {a}", f"slide: {b}") for a, b in RECOVERY)),
    ),
    "simple-reward": (
        ("score",),
        (
            *(
                (f"simple, minibatch {n}", f"shaped, minibatch {n}")
                for n in (256, 1024, 4096, 16384)
            ),
            *((f"{r}, minibatch 16384", f"{r}, minibatch 256") for r in ("simple", "shaped")),
            *(
                (f"simple, ten times, minibatch {n}", f"shaped, ten times, minibatch {n}")
                for n in (1024, 16384)
            ),
            *(
                (f"{r}, ten times, minibatch 16384", f"{r}, ten times, minibatch 1024")
                for r in ("simple", "shaped")
            ),
        ),
    ),
}


def differences(summary: Summary) -> list[str]:
    """Of every pair of rows that this table compares the mean difference over the seeds that both
    have, with its interval; pairs with one such seed are left out."""
    numbers, pairs = COMPARED[summary.plan.name]
    by_row = {
        label: {r["key"]["seed"]: r["values"] for r in records}
        for block in summary.blocks
        for label, records in records_of(block).items()
    }
    lines = []
    for first, second in pairs:
        ours, theirs = by_row.get(first, {}), by_row.get(second, {})
        both = sorted(ours.keys() & theirs.keys())
        if len(both) < 2:
            continue
        parts = []
        for name in numbers:
            each = np.array([ours[s][name] - theirs[s][name] for s in both])
            parts.append(f"{name} {span(statistics.confidence_interval(each, statistics.mean))}")
        lines.append(f"{first} less {second}, {len(both)} seeds: {', '.join(parts)}.")
    return lines
