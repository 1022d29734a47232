"""Sentences about language models that are computed from the records of a table."""

from collections.abc import Iterator, Sequence

import numpy as np
from scipy import special

from experiments.tables.records import Record
from experiments.tables.summary import BlockSummary, Summary, records_of
from mbrl import statistics
from mbrl.policy_gradient import recipe
from mbrl.statistics import Interval

BAND = (20.0, 50.0)  # percent that a warm start is to solve
GRPO, UNIFORM = "grpo", "uniform"
PERCENT = {"signal": 100.0}  # of values that are recorded as shares
LOST = 5.0  # percent: a run that ends below has lost what its warm start had


def warm_starts(summary: Summary) -> list[str]:
    """Accuracy of the warm starts of all cells, and which of them are outside the band."""
    known: dict[tuple[str, int], float] = {}
    for block in summary.blocks:
        for records in records_of(block).values():
            for record in records:
                key = record["key"]
                known[key["settings"]["task"], key["seed"]] = record["values"]["before"]
    if not known:
        return []
    low, high = BAND
    out = [f"{t} seed {s} {v:.1f}" for (t, s), v in sorted(known.items()) if not low <= v <= high]
    values = list(known.values())
    return [
        f"{len(known)} warm starts solve {min(values):.1f} to {max(values):.1f} % of new problems "
        f"of the trained levels, {np.mean(values):.1f} % on average; outside {low:g} to {high:g} "
        f"%: {', '.join(out) or 'none'}."
    ]


def rewards(summary: Summary) -> list[str]:
    """For every task with a row of GRPO and rows of demonstrations: the gains, their differences,
    and the seconds of a cell."""
    lines = []
    for block in summary.blocks:
        rows = {label: records for label, records in records_of(block).items() if records}
        for label, records in rows.items():
            task, _, name = label.partition(", ")
            if name.endswith("demonstrations") and f"{task}, GRPO" in rows:
                lines += _beside(rows[f"{task}, GRPO"], records, task, name)
    return lines


def _beside(own: list[Record], other: list[Record], task: str, name: str) -> list[str]:
    """GRPO's records of a task beside those of a row of demonstrations."""
    lines = []
    for key, where in (("gain", "trained levels"), ("gain_other", "other levels")):
        a, b = (np.array([r["values"][key] for r in records]) for records in (own, other))
        if np.isnan([*a, *b]).any():
            continue
        gains = [statistics.confidence_interval(x, statistics.mean) for x in (a, b)]
        less = statistics.paired_comparison({"GRPO": a, name: b}, name)["GRPO"].difference
        lines.append(
            f"{task}, {where}: GRPO gains {span(gains[0])} points, {name} {span(gains[1])}, the "
            f"difference is {span(less)}."
        )
    seconds = [np.mean([r["seconds"] for r in records]) for records in (own, other)]
    used = [np.mean([r["values"]["samples"] for r in records]) for records in (own, other)]
    lines.append(
        f"{task}: a cell of GRPO took {seconds[0]:.0f} s for {used[0]:,.0f} conversations, one of "
        f"{name} {seconds[1]:.0f} s for {used[1]:,.0f}."
    )
    return lines


def pretrained(summary: Summary) -> list[str]:
    """For every row of a pretrained model: accuracies before and after, and the gain, each with its
    95 % interval over problems, seed by seed."""
    lines = []
    for block in summary.blocks:
        for label, records in records_of(block).items():
            shown = []
            for record in records:
                value = record["values"]
                before, after, gain = (
                    span(Interval(*(value[f"{name}{end}"] for end in ("", "_low", "_high"))))
                    for name in ("before", "after", "gain")
                )
                seed = record["key"]["seed"]
                shown.append(f"seed {seed} from {before} to {after} %, gain {gain}")
            if shown:
                lines.append(f"{label}: {'; '.join(shown)}.")
    if lines:
        lines.append(
            "Intervals of accuracies are Wilson's where each problem has one answer, those of "
            "gains Student's over the paired differences of problems."
        )
    return lines


def against_grpo(summary: Summary) -> list[str]:
    return against(GRPO, summary)


def detectable(summary: Summary) -> list[str]:
    """How small a difference to GRPO the intervals of a task could tell from 0: half their width,
    of rows with as many seeds as GRPO; rows that had no signal, or diverged, are left out."""
    lines = []
    for block in summary.blocks:
        for task, rows in comparable(block).items():
            scores = {n: np.array([r["values"]["score"] for r in rs]) for n, rs in rows.items()}
            table = {name: [own] for name, own in scores.items() if np.isfinite(own).all()}
            if GRPO not in table:
                continue
            seeds = len(table[GRPO][0])
            alike = {name: s for name, s in table.items() if len(s[0]) == seeds}
            if len(alike) < 2:
                continue
            compared = statistics.paired_comparison(alike, GRPO).values()
            half = sorted((c.difference.high - c.difference.low) / 2 for c in compared)
            lines.append(
                f"{task}: with {seeds} seeds a difference to GRPO shows from {half[0]:.1f} to "
                f"{half[-1]:.1f} points on, row by row (median {np.median(half):.1f})."
            )
    return lines


def power(summary: Summary) -> list[str]:
    """Of every task and number of rounds with GRPO: the deviation of differences to it within a
    seed, pooled over the other rows with the same seeds, and the smallest true difference that a
    paired test finds with probability 0.8, with these seeds and with more."""
    lines = []
    for task, rows in _apart_within_seeds(summary):
        apart = list(rows.values())
        deviation = float(np.sqrt(np.mean([x.var(ddof=1) for x in apart])))
        counts = sorted({n for n in (len(apart[0]), 10, 30) if n > 2})
        seen = [(statistics.detectable_difference(deviation, n), n) for n in counts]
        named = ", ".join(f"{size:.1f} points with {n} seeds" for size, n in seen)
        lines.append(
            f"{task}: differences to GRPO within a seed have a deviation of {deviation:.1f} "
            f"points ({len(apart)} rows). A paired test finds these true differences with "
            f"probability 0.8: {named}."
        )
    return lines


def within_seeds(summary: Summary) -> list[str]:
    """Of every task with GRPO: differences to it within a seed, where runs share the warm start,
    with 95 % intervals (Student's t over pairs), how many of these are without 0, and which
    differences stand after Holm's correction."""
    lines = []
    for task, rows in _apart_within_seeds(summary):
        spans = {n: statistics.confidence_interval(d, statistics.mean) for n, d in rows.items()}
        without = sum(i.low > 0 or i.high < 0 for i in spans.values())
        shown = ", ".join(f"{name} {span(i)}" for name, i in spans.items())
        adjusted = statistics.holm([_p_value(d) for d in rows.values()])
        stand = [name for name, p in zip(rows, adjusted, strict=True) if p < 0.05]
        lines.append(
            f"{task}, differences to GRPO within a seed, {without} of {len(rows)} without 0 in "
            f"their interval ({0.05 * len(rows):.1f} by chance alone): {shown}; "
            f"after Holm's correction: {', '.join(stand) or 'none'}."
        )
    for block in summary.blocks:
        for task, compared in comparable(block).items():
            base = compared.get(GRPO, [])
            others = [n for n, own in compared.items() if not share_starts(base, own)]
            if base and others:
                lines.append(f"{task}, not compared, from other warm starts: {', '.join(others)}.")
    return lines


def _p_value(differences: np.ndarray) -> float:
    """Of the two-sided t test that the mean is 0; NaN of equal ones, which have no deviation."""
    error = float(differences.std(ddof=1)) / np.sqrt(len(differences))
    if error == 0:
        return float("nan")
    return float(2 * special.stdtr(len(differences) - 1, -abs(differences.mean()) / error))


def _apart_within_seeds(summary: Summary) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Of every task and block with GRPO: scores less those of GRPO, seed by seed, of the rows with
    the same seeds and warm starts."""
    for block in summary.blocks:
        for task, rows in comparable(block).items():
            first = rows.pop(GRPO, [])
            base = _scores(first)
            scores = {n: _scores(own) for n, own in rows.items() if share_starts(first, own)}
            apart = {
                name: np.array([own[seed] - base[seed] for seed in base])
                for name, own in scores.items()
                if base and set(own) == set(base)
            }
            if apart:
                yield task, apart


def share_starts(first: Sequence[Record], second: Sequence[Record]) -> bool:
    """Whether what a seed begins with solves as much `before` in both rows, as far as recorded. A
    warm start that is made again, on another machine, is another one."""
    starts = [{r["key"]["seed"]: r["values"].get("before") for r in own} for own in (first, second)]
    return all(starts[1][seed] == starts[0][seed] for seed in starts[0].keys() & starts[1].keys())


def comparable(block: BlockSummary) -> dict[str, dict[str, list[Record]]]:
    """The rows of each task, labelled "task, name", that several seeds have and that had a
    signal."""
    tasks: dict[str, dict[str, list[Record]]] = {}
    for label, records in records_of(block).items():
        task, name = label.split(", ", 1)
        if len(records) > 1 and not silent(records):
            tasks.setdefault(task, {})[name] = records
    return tasks


def _scores(records: Sequence[Record]) -> dict[int, float]:
    """The finite scores of a row by seed."""
    scores = {r["key"]["seed"]: float(r["values"]["score"]) for r in records}
    return {seed: score for seed, score in scores.items() if np.isfinite(score)}


def by_gate(summary: Summary) -> list[str]:
    """For tasks with several kinds of gates (how a recipe lets steps of the policy through): how
    many recipes have each, what they gain on average, and how many runs lost everything. Recipes
    of a kind differ in more than that."""
    gates: dict[str, dict[str, list[list[Record]]]] = {}
    for block in summary.blocks:
        for label, records in records_of(block).items():
            if records and not silent(records):
                kind = type(recipe(records[0]["key"]["settings"]["recipe"]).gate).__name__
                kinds = gates.setdefault(label.split(", ", 1)[0], {})
                kinds.setdefault(kind, []).append(records)
    lines = []
    for task, kinds in gates.items():
        if len(kinds) < 2:
            continue
        shown = []
        for kind, rows in sorted(kinds.items(), key=lambda item: -len(item[1])):
            values = [r["values"] for records in rows for r in records]
            gains = np.array([v["gain"] for v in values])
            lost = sum(not v["score"] >= LOST for v in values)
            mean = np.mean(gains[np.isfinite(gains)]) if np.isfinite(gains).any() else np.nan
            shown.append(f"{kind} ({len(rows)}) {mean:.1f}, {lost} of {len(values)} runs lost")
        lines.append(
            f"{task}, points gained by recipes of a kind of gate on average, and runs that "
            f"diverged or ended below {LOST:g} %: {'; '.join(shown)}."
        )
    return lines


def alike(summary: Summary) -> list[str]:
    """Recipes of a task that ended with the same numbers on every seed: where nothing happened that
    they treat differently, they are one recipe under several names."""
    lines = []
    for block in summary.blocks:
        rows: dict[tuple[str, str], list[str]] = {}
        for label, records in records_of(block).items():
            task, name = label.split(", ", 1)
            if len(records) > 1 and not silent(records):
                measured = str([(r["key"]["seed"], r["values"], r["curves"]) for r in records])
                rows.setdefault((task, measured), []).append(name)
        tasks: dict[str, list[str]] = {}
        for (task, _), names in rows.items():
            if len(names) > 1:
                tasks.setdefault(task, []).append(" and ".join(names))
        lines += [
            f"{task}, the same numbers on every seed: {'; '.join(names)}."
            for task, names in tasks.items()
        ]
    return lines


def schedulers(summary: Summary) -> list[str]:
    """Schedulers with a larger share of mixed groups, and with a higher final score."""
    lines = against(UNIFORM, summary, "signal") + against(UNIFORM, summary)
    return list(dict.fromkeys(lines))  # a run that diverged is named by both


def silent(records: list[Record]) -> bool:
    """Whether a run of the row had no signal to learn from: it is compared with nothing."""
    return any(r["values"].get("no_signal") for r in records)


def against(reference: str, summary: Summary, value: str = "score") -> list[str]:
    """Which rows of a block are above and below the reference on each task, and over all tasks
    together: those whose interval of the difference of means of `value` does not hold 0; of these
    those that stand when all are tested at once. Rows with a run that diverged, or that had no
    signal to learn from, are named and not tested. A value that is a share is given in percent.
    """
    lines = []
    for block in summary.blocks:
        tasks: dict[str, dict[str, np.ndarray]] = {}
        for label, records in records_of(block).items():
            task, name = label.split(", ", 1)
            scores = np.array([r["values"][value] for r in records]) * PERCENT.get(value, 1.0)
            lost = int(np.isnan(scores).sum())
            if silent(records):
                lines.append(
                    f"{task}, {name}: no signal (advantages all 0, or a signal that never varied); "
                    "in no comparison."
                )
            elif lost:
                lines.append(f"{task}, {name}: {lost} of {len(records)} runs diverged.")
            elif len(records) > 1:
                tasks.setdefault(task, {})[name] = scores
        tables = {task: {n: [s] for n, s in scores.items()} for task, scores in tasks.items()}
        if len(tasks) > 1:
            everywhere = [
                n
                for n in next(iter(tasks.values()))
                if all(n in scores for scores in tasks.values())
            ]
            tables["all tasks"] = {n: [scores[n] for scores in tasks.values()] for n in everywhere}
        for task, table in tables.items():
            if reference in table and len(table) > 1:
                about = task if value == "score" else f"{value} on {task}"
                lines += _compared(reference, about, table)
    return lines


def _compared(reference: str, about: str, table: dict[str, list[np.ndarray]]) -> list[str]:
    compared = statistics.paired_comparison(table, reference)
    lines = []
    for word, sign in (("above", 1), ("below", -1)):
        differs = {
            name: result
            for name, result in compared.items()
            if min(sign * result.difference.low, sign * result.difference.high) > 0
        }
        ranked = sorted(differs, key=lambda name: -sign * differs[name].difference.estimate)
        shown = [f"{n} {span(differs[n].difference)}" for n in ranked]
        stand = [n for n in ranked if differs[n].adjusted_p_value < 0.05]
        lines.append(
            f"{about}, {word} {reference} by an interval without 0, {len(shown)} of "
            f"{len(compared)} ({len(compared) / 40:.1f} by chance alone): "
            f"{', '.join(shown) or 'none'}; after Holm's correction: {', '.join(stand) or 'none'}."
        )
    return lines


def span(at: Interval, digits: int = 1) -> str:
    """An estimate with its interval, where it has one."""
    low, estimate, high = (f"{x:.{digits}f}" for x in (at.low, at.estimate, at.high))
    return estimate if np.isnan(at.low) else f"{estimate} [{low}, {high}]"
