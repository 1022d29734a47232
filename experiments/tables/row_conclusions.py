"""What the file of a table asks to be compared, as sentences under the table: numbers of rows of a
study, paired by seed, or last scores of columns of runs, dataset by dataset."""

from collections.abc import Sequence

import numpy as np

from experiments.tables.compared import Compared
from experiments.tables.language_conclusions import span
from experiments.tables.records import Record
from experiments.tables.summary import Summary, records_of
from mbrl import statistics
from mbrl.statistics import Interval


def differences(summary: Summary) -> list[str]:
    """Of every row that is compared the means over its seeds, with their intervals. Of another row
    only the seeds count that both have; of pooled rows those count that have the most seeds. Where
    there is one such seed, the line is left out."""
    named = {
        name
        for asked in summary.plan.compared
        for pair in (*asked.pooled, *((row, asked.than) for row in asked.rows))
        for name in pair
    }
    by_row = {
        label: {r["key"]["seed"]: r for r in records}
        for block in summary.blocks
        for label, records in records_of(block).items()
        if label in named
    }
    lines = []
    for asked in summary.plan.compared:
        for row in asked.rows:
            title = row if asked.than is None else f"{row} less {asked.than}"
            pairs = asked.pooled or ((row, asked.than),)
            seeds_of = {pair: _shared_seeds(pair, by_row) for pair in pairs}
            most = max(seeds_of.values(), key=len)
            pairs = tuple(pair for pair in pairs if seeds_of[pair] == most)
            if asked.pooled:
                title = f"Mean of {len(pairs)} rows, {title}"
            if len(most) > 1:
                lines.append(_line(title, asked, pairs, most, by_row))
    return lines


def _shared_seeds(pair: tuple[str, str | None], by_row: dict[str, dict[int, Record]]) -> list[int]:
    return sorted(set.intersection(*(set(by_row.get(n, {})) for n in pair if n is not None)))


def _line(
    title: str,
    asked: Compared,
    pairs: Sequence[tuple[str, str | None]],
    seeds: Sequence[int],
    by_row: dict[str, dict[int, Record]],
) -> str:
    parts = []
    for number in asked.numbers:
        each = np.mean(
            [
                [_value(by_row[row][s], None if o is None else by_row[o][s], number) for s in seeds]
                for row, o in pairs
            ],
            axis=0,
        )
        name = number if isinstance(number, str) else f"{number[0]} less {number[1]}"
        at = statistics.confidence_interval(each, statistics.mean)
        parts.append(f"{name} {span(at, asked.digits)}")
    return f"{title}, {len(seeds)} seeds: {', '.join(parts)}."


def _value(ours: Record, theirs: Record | None, number: str | tuple[str, str]) -> float:
    """A number of a record less the same of another, or, of a pair of numbers, less the second."""
    if isinstance(number, tuple):
        return _number(ours, number[0]) - _number(ours, number[1])
    return _number(ours, number) - (0.0 if theirs is None else _number(theirs, number))


def _number(record: Record, name: str) -> float:
    """A value of a record, or `CURVE@SHARE`: the point of a curve that far along its points."""
    if "@" not in name:
        return float(record["values"][name])
    curve, share = name.split("@")
    points = record["curves"][curve]
    return float(points[round(float(share) * (len(points) - 1))])


def column_differences(summary: Summary) -> list[str]:
    """Of every two columns of runs that are compared the mean difference of last scores over the
    datasets on which both have two seeds or more, and the datasets whose own interval lies above or
    below 0. Numbers of seeds may differ; see `statistics.paired_comparison`. Runs without a score,
    such as those that diverged, are counted in the line."""
    lines = []
    for column, than in summary.plan.compared_columns:
        ours, theirs = _scores_of(column, summary), _scores_of(than, summary)
        rows = [row for row in ours if len(ours[row]) > 1 and len(theirs.get(row, ())) > 1]
        if not rows:
            continue
        at = _difference([ours[row] for row in rows], [theirs[row] for row in rows])
        fewest = [min(len(scores[row]) for row in rows) for scores in (ours, theirs)]
        parts = [f"{span(at)} in the mean over {len(rows)} datasets"]
        single = {row: _difference([ours[row]], [theirs[row]]) for row in rows}
        for word, apart in (
            ("above", {row: d for row, d in single.items() if d.low > 0}),
            ("below", {row: d for row, d in single.items() if d.high < 0}),
        ):
            if apart:
                parts.append(f"{word} on {', '.join(f'{r} {span(d)}' for r, d in apart.items())}")
        if lost := _without_score(column, summary) + _without_score(than, summary):
            parts.append(f"without {lost} runs that have no score")
        lines.append(
            f"{column} less {than}, at least {fewest[0]} and {fewest[1]} seeds: {'; '.join(parts)}."
        )
    return lines


def _scores_of(label: str, summary: Summary) -> dict[str, np.ndarray]:
    """The last scores [seeds] of a column on each row of the table; runs that diverged have none,
    and neither have rows whose numbers are no scores."""
    by_row: dict[str, np.ndarray] = {}
    for block in summary.blocks:
        for row in block.block.rows if block.units <= {"score"} else ():
            entry = block.entries.get((row.label, label))
            if entry is not None and entry.last:
                by_row[row.label] = np.array([x for x in entry.last if np.isfinite(x)])
    return by_row


def _without_score(label: str, summary: Summary) -> int:
    """Finished runs of a column that diverged, or whose last score is not a number."""
    entries = [e for b in summary.blocks for (_, name), e in b.entries.items() if name == label]
    return sum(len(e.diverged) + int((~np.isfinite(e.last)).sum()) for e in entries)


def _difference(ours: list[np.ndarray], theirs: list[np.ndarray]) -> Interval:
    return statistics.paired_comparison({"ours": ours, "theirs": theirs}, "theirs")[
        "ours"
    ].difference
