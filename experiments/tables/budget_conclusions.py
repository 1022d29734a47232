"""What is at fault where logged data do not give the expert's score: the data, the budget or the
method. Runs that ended by the offline criterion, beside runs with the task's own dynamics."""

from dataclasses import dataclass, field

import numpy as np

from experiments.tables import records
from experiments.tables.records import Record
from experiments.tables.summary import Summary

SOLVED = 90.0  # score from which nothing is at fault
NEAR = 10.0  # points that count as the same
RISING = 5.0  # points by which the end of a run is above its middle where it still rises


@dataclass
class Dataset:
    """The finished runs on a dataset: of every method, and with the task's own dynamics, by
    column."""

    methods: dict[str, list[Record]] = field(default_factory=dict)
    bounds: dict[str, list[Record]] = field(default_factory=dict)
    able: bool = True  # whether such runs reached `SOLVED` from any dataset of the task

    def best(self) -> str:
        """The method with the highest mean of last scores."""
        return max(self.methods, key=lambda name: score(self.methods[name]))

    def bound(self) -> str:
        """Of several columns with the task's dynamics, the one with the highest reach."""
        return max(self.bounds, key=lambda name: reach(self.bounds[name]))


def score(known: list[Record]) -> float:
    """Mean of the last scores."""
    return float(np.mean([records.last_score(r) for r in known]))


def reach(known: list[Record]) -> float:
    """Mean over runs of their highest evaluation: a bound asks what is possible, and the task may
    say it."""
    return float(np.mean([records.scores(r).max() for r in known]))


def rising(record: Record) -> bool:
    """Whether the last three evaluations are on average above the three before them."""
    scores = records.scores(record)
    if len(scores) < 6:
        return False
    return bool(scores[-3:].mean() - scores[-6:-3].mean() > RISING)


def verdict(known: Dataset) -> str:
    """`nothing` at fault: the best method ends at `SOLVED`. Else, where runs with the true dynamics
    reached `NEAR` points more than the best method ends at: `budget` if a run of that method ended
    at a limit rather than by the criterion, and `method` if all of them ended by it. Where they do
    not: `open` if a run with them still rises, or if none reached `SOLVED` from other states of the
    task either, since a learner that cannot solve it bounds nothing; `data` otherwise. `open` too
    without such runs."""
    best = score(known.methods[known.best()])
    if best >= SOLVED:
        return "nothing"
    if not known.bounds:
        return "open"
    if reach(known.bounds[known.bound()]) >= best + NEAR:
        ends = {r["until_flat"]["why"] for r in known.methods[known.best()]}
        return "method" if ends == {"flat"} else "budget"
    rises = any(rising(r) for r in known.bounds[known.bound()])
    return "open" if rises or not known.able else "data"


def by_dataset(summary: Summary) -> dict[str, Dataset]:
    """The runs of the table in the order of its rows, of datasets with a method's run."""
    known: dict[str, Dataset] = {}
    for block in summary.blocks:
        for (label, column), entry in block.entries.items():
            data = label.partition("@")[0]
            for record in entry.records:
                own = known.setdefault(data, Dataset())
                group = own.methods if "until_flat" in record else own.bounds
                group.setdefault(column, []).append(record)
    solved = {
        name.partition("/")[0]
        for name, own in known.items()
        if own.bounds and reach(own.bounds[own.bound()]) >= SOLVED
    }
    for name, own in known.items():
        own.able = name.partition("/")[0] in solved
    return {name: own for name, own in known.items() if own.methods}


def _ends(known: list[Record]) -> str:
    """How runs ended: the updates and why, the score of the policy of the highest value where it
    was kept, and the seconds."""
    parts = [f"{r['steps'][-1]} updates, {r['until_flat']['why']}" for r in known]
    kept = float(np.mean([records.selected_score(r) for r in known]))
    if not np.isnan(kept):
        parts.append(f"{kept:.1f} at the highest value")
    seconds = np.mean([r["processor_seconds"] for r in known])
    return f"{'; '.join(parts)}; {seconds:.0f} s"


def budgets(summary: Summary) -> list[str]:
    """For each dataset: what is at fault, the best method, the scores with the true dynamics, and
    how the runs of every method ended (the criterion: `flat`; limits: `updates`, `time`)."""
    lines = []
    for name, known in by_dataset(summary).items():
        best, true = known.best(), "not run"
        if known.bounds:
            own = known.bounds[known.bound()]
            true = f"{reach(own):.1f} at their highest and {score(own):.1f} at the end"
        missing = [c.label for c in summary.blocks[0].block.columns if c.label not in known.methods]
        rest = f" Not run: {', '.join(missing)}." if missing else ""
        ended = ", ".join(f"{m} {score(r):.1f} ({_ends(r)})" for m, r in known.methods.items())
        top = f"best {best} {score(known.methods[best]):.1f}, true dynamics {true}"
        lines.append(f"{name}: at fault {verdict(known)}; {top}. {ended}.{rest}")
    return lines + _kept_or_last(summary)


def _kept_or_last(summary: Summary) -> list[str]:
    """Of every method the mean score of the policies of the highest value beside that of the last
    ones, over the datasets where the former were kept."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for known in by_dataset(summary).values():
        for method, own in known.methods.items():
            kept = float(np.mean([records.selected_score(r) for r in own]))
            if not np.isnan(kept):
                pairs.setdefault(method, []).append((kept, score(own)))
    parts = [
        f"{method} {kept:.1f} against {last:.1f} ({len(each)} datasets)"
        for method, each in pairs.items()
        for kept, last in [np.mean(each, axis=0)]
    ]
    return [f"at the highest value against the end: {', '.join(parts)}."] if parts else []
