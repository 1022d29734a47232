"""What the file of a table of a study asks to be compared: numbers of rows, paired by seed, as
sentences under the table."""

import numpy as np

from experiments.tables.compared import Compared
from experiments.tables.language_conclusions import span
from experiments.tables.records import Record
from experiments.tables.summary import Summary, records_of
from mbrl import statistics


def differences(summary: Summary) -> list[str]:
    """Of every row that is compared the means over its seeds, with their intervals. Of another row
    only the seeds count that both have. Where there is one such seed, the line is left out."""
    named = {name for asked in summary.plan.compared for name in (*asked.rows, asked.than)}
    by_row = {
        label: {r["key"]["seed"]: r for r in records}
        for block in summary.blocks
        for label, records in records_of(block).items()
        if label in named
    }
    return [
        line
        for asked in summary.plan.compared
        for row in asked.rows
        for line in _line(asked, row, by_row)
    ]


def _line(asked: Compared, row: str, by_row: dict[str, dict[int, Record]]) -> list[str]:
    ours = by_row.get(row, {})
    theirs = ours if asked.than is None else by_row.get(asked.than, {})
    seeds = sorted(ours.keys() & theirs.keys())
    if len(seeds) < 2:
        return []
    parts = []
    for number in asked.numbers:
        first, second = number if isinstance(number, tuple) else (number, None)
        each = np.array([_number(ours[s], first) for s in seeds])
        if asked.than is not None:
            each -= [_number(theirs[s], first) for s in seeds]
        elif second is not None:
            each -= [_number(ours[s], second) for s in seeds]
        name = first if second is None else f"{first} less {second}"
        at = statistics.confidence_interval(each, statistics.mean)
        parts.append(f"{name} {span(at, asked.digits)}")
    title = row if asked.than is None else f"{row} less {asked.than}"
    return [f"{title}, {len(seeds)} seeds: {', '.join(parts)}."]


def _number(record: Record, name: str) -> float:
    """A value of a record, or `CURVE@SHARE`: the point of a curve that far along its points."""
    if "@" not in name:
        return float(record["values"][name])
    curve, share = name.split("@")
    points = record["curves"][curve]
    return float(points[round(float(share) * (len(points) - 1))])
