"""Conclusions: sentences under a table that are computed from its records."""

import re
from collections.abc import Callable

import numpy as np
from scipy import stats

from experiments.studies import few_steps as few
from experiments.studies import window_quality as quality
from experiments.tables import (
    bandit_conclusions,
    budget_conclusions,
    cascade_conclusions,
    design_conclusions,
    goal_conclusions,
    row_conclusions,
)
from experiments.tables import language_conclusions as language
from experiments.tables.records import Record
from experiments.tables.summary import Summary, records_of
from mbrl import statistics
from mbrl.errors import unknown_name


def certified(summary: Summary) -> list[str]:
    """For rows with `q`, `bound`, `lag_bound` and `slope`: in how many seeds the value exceeds
    the bound, and whether it still grows."""
    lines = []
    for block in summary.blocks:
        for label, records in records_of(block).items():
            values = [r["values"] for r in records]
            if not values or not {"q", "bound", "lag_bound", "slope"} <= values[0].keys():
                continue
            above = sum(v["q"] > v["bound"] for v in values)
            lag = sum(v["q"] > v["lag_bound"] for v in values)
            slope = np.array([v["slope"] for v in values])
            at = statistics.confidence_interval(slope, statistics.mean)
            around = "" if np.isnan(at.low) else f" [{at.low:.2f}, {at.high:.2f}]"
            lines.append(
                f"{label}: value above the bound in {above} of {len(values)} seeds, above the "
                f"lagging bound in {lag}, growing by {at.estimate:.2f}{around} per 1,000 updates."
            )
    return lines


def detector(summary: Summary) -> list[str]:
    """How often the alarm agrees with what happened, over all records with `blew_up`. Runs of one
    seed with the same numbers are one run under two labels: without a penalty, a method is the one
    that it extends."""
    records = {
        (r["key"]["seed"], *(f"{k} {r['values'][k]}" for k in ("q", "excess"))): r["values"]
        for block in summary.blocks
        for records in records_of(block).values()
        for r in records
        if "blew_up" in r["values"]
    }.values()
    blown = [r for r in records if r["blew_up"] > 0]
    well = [r for r in records if r["blew_up"] == 0]
    lines = []
    for name, group, hit in (
        ("that blew up, the detector found", blown, True),
        ("that did not, it passed", well, False),
    ):
        right = sum(np.isfinite(r["alarm"]) == hit for r in group)
        if group:
            low, high = stats.binomtest(right, len(group)).proportion_ci(method="wilson")
            lines.append(
                f"Of {len(group)} runs {name} {right}: {right / len(group):.2f} "
                f"[{low:.2f}, {high:.2f}] (Wilson, 95 %)."
            )
    leads = [r["lead"] for r in blown if np.isfinite(r.get("lead", np.nan))]
    if leads:
        lines.append(
            f"In the {len(leads)} of them whose return fell, the alarm came before the fall by a "
            f"median of {np.median(leads):.0f} updates ({min(leads):.0f} to {max(leads):.0f}; "
            f"below 0: after it)."
        )
    return lines


def guided(summary: Summary) -> list[str]:
    """For every learner L with columns `L`, `L unguided` and `L guided` (or several whose labels
    begin so): differences of the means over datasets of the last scores."""
    lines = []
    for block in summary.blocks:
        scores = {c.label: block.scores(c) for c in block.block.columns if block.complete(c)}
        where = block.block.title or f"{len(block.block.rows)} datasets"
        lines += _guided(scores, where, "mean score, 95 %")
    return lines


def guided_by_dataset(summary: Summary) -> list[str]:
    """As `guided`, of every dataset by itself."""
    lines = []
    for block in summary.blocks:
        for row in block.block.rows:
            own = {c.label: np.array(block.entry(row, c).last) for c in block.block.columns}
            scores = {label: [last] for label, last in own.items() if len(last)}
            lines += _guided(scores, row.label, "last score, 95 %")
    return lines


def _guided(scores: dict[str, list[np.ndarray]], where: str, what: str) -> list[str]:
    lines = []
    for name in scores:
        if f"{name} unguided" not in scores:
            continue
        for label in (x for x in scores if x.startswith(f"{name} guided")):
            kind = label.removeprefix(f"{name} ")
            kinds = {"real": name, "unguided": f"{name} unguided", kind: label}
            parts = []
            for a, b in (("unguided", "real"), (kind, "real"), (kind, "unguided")):
                pair = {k: scores[kinds[k]] for k in (a, b)}
                d = statistics.paired_comparison(pair, b)[a].difference
                around = "" if np.isnan(d.low) else f" [{d.low:.1f}, {d.high:.1f}]"
                parts.append(f"{a} less {b} {d.estimate:.1f}{around}")
            lines.append(f"{name}, {where}: {', '.join(parts)} ({what}).")
    return lines


def precisions(summary: Summary) -> list[str]:
    """For rows of one dataset at two precisions: differences of the last scores, seed by seed, of a
    column and of all columns, and how long the runs took."""
    rows = {(r.data, r.matmul_precision): (b, r) for b in summary.blocks for r in b.block.rows}
    lines: list[str] = []
    every: list[float] = []
    for (data, precision), (block, row) in rows.items():
        if precision == "highest" or (data, "highest") not in rows:
            continue
        other, base = rows[data, "highest"]
        for column in block.block.columns:
            a, b = block.entry(row, column), other.entry(base, column)
            shared = [s for s in a.seeds if s in b.seeds]
            if len(shared) < 2:
                continue
            pairs = [(a.seeds.index(s), b.seeds.index(s)) for s in shared]
            difference = np.array([a.last[i] - b.last[j] for i, j in pairs])
            times = np.median([b.seconds[j] / a.seconds[i] for i, j in pairs])
            at = statistics.confidence_interval(difference, statistics.mean)
            every += list(difference)
            lines.append(
                f"{column.label}, {data}: {precision} less highest {at.estimate:.1f} "
                f"[{at.low:.1f}, {at.high:.1f}] ({len(shared)} seeds), {times:.2f} times as fast."
            )
    if every:
        at = statistics.confidence_interval(np.array(every), statistics.mean)
        lines.append(
            f"All {len(every)} pairs: {at.estimate:.1f} [{at.low:.1f}, {at.high:.1f}]; a "
            f"difference of {at.high - at.estimate:.1f} would have shown."
        )
    return lines


def few_steps(summary: Summary) -> list[str]:
    """For the first block, once all its cells are finished: the least number of evaluations at
    which each sampler has equal quality in all seeds, and the sampler with the least over all
    rows."""
    block = summary.blocks[0]
    rows = records_of(block)
    if any(len(known) < len(block.block.seeds) for known in rows.values()):
        return []
    lines, cheapest = [], []
    for name in few.names(next(iter(rows.values()))[0]):
        good = {label: _equal(known, name) for label, known in rows.items()}
        parts = [f"{min(g) if g else 'none'} ({label})" for label, g in good.items()]
        lines.append(f"{name}, least evaluations at equal quality: {', '.join(parts)}.")
        cheapest += [(n, name) for n in set.intersection(*good.values())]
    text = "Of equal quality everywhere with the fewest evaluations: "
    lines.append(text + _first(cheapest))
    named = [(n, name) for n, name in cheapest if name in few.PLAIN]
    return [*lines, "Of those that a configuration names, the default: " + _first(named)]


def windows(summary: Summary) -> list[str]:
    """For every panel with a diffusion and an ensemble: the errors of the first over those of the
    second at the same likelihood of the target policy; and how a diffusion's likelihoods and errors
    go with the weight (P1, P2 and P5 of policy-guided diffusion, arXiv 2404.06356)."""
    rows: dict[str, list[Record]] = {}
    for block in summary.blocks:
        rows |= records_of(block)
    lines = []
    for label, records in rows.items():
        panel, _, line = label.partition(", ")
        if not line.startswith("diffusion") or not records:
            continue
        others = {r["key"]["seed"]: r for r in rows.get(f"{panel}, ensemble", [])}
        pairs = [(r, others[r["key"]["seed"]]) for r in records if r["key"]["seed"] in others]
        for where, compared in (
            ("at equal likelihood", quality.at_equal_likelihood),
            ("where likelihoods that never meet come nearest", quality.at_nearest_likelihood),
        ):
            parts, seeds = [], 0
            for name, title in (("one_step", "one-step"), ("open", "open-loop")):
                logs = np.array([compared(a, b, name) for a, b in pairs])
                known = logs[np.isfinite(logs)]
                seeds = len(known)
                if seeds:
                    at = statistics.confidence_interval(known, statistics.mean)
                    mean, low, high = (f"{float(f'{10**x:.2g}'):g}" for x in at)
                    ends = "" if np.isnan(at.low) else f" [{low}, {high}]"
                    parts.append(f"{title} error {mean}{ends} times the ensemble's")
            if parts:
                share = "" if seeds == len(pairs) else f" ({seeds} of {len(pairs)} seeds)"
                lines.append(f"{label}, {where}{share}: {', '.join(parts)}.")
        slopes = []
        for name in ("log_prob", "behaviour", "one_step"):
            r = [stats.spearmanr(k["curves"]["weight"], k["curves"][name]) for k in records]
            slopes.append(f"{name} {np.mean([each.statistic for each in r]):.2f}")
        lines.append(f"{label}, rank correlation with the weight: {', '.join(slopes)}.")
    return lines


def costly(summary: Summary) -> list[str]:
    """Recipes that take more than twice as long as GRPO, by the mean over seeds."""
    lines = []
    for block in summary.blocks:
        for label, records in records_of(block).items():
            if not records:
                continue
            curves = [r["curves"] for r in records]
            times = {n: np.mean([sum(c[n]) / sum(c["grpo"]) for c in curves]) for n in curves[0]}
            above = sorted((n for n in times if times[n] > 2), key=lambda n: -times[n])
            named = ", ".join(f"{n} {times[n]:.1f}" for n in above) or "none"
            lines.append(f"{label}, above twice GRPO's: {named}.")
    return lines


def beaten(summary: Summary) -> list[str]:
    """Which rows of a block are above and below GRPO and PPO."""
    lines = [line for name in ("grpo", "ppo") for line in language.against(name, summary)]
    return list(dict.fromkeys(lines))  # runs that diverged are named once


TRENDS = ("length", "gap", "score")


def trends(summary: Summary) -> list[str]:
    """For rows that differ in a number, the last in what stands after the first comma of their
    labels: rank correlations over runs of what was measured with that number."""
    lines = []
    for block in summary.blocks:
        panels: dict[str, list[tuple[float, Record]]] = {}
        for label, records in records_of(block).items():
            panel, _, line = label.partition(", ")
            numbers = re.findall(r"\d+(?:\.\d+)?", line.partition(" of ")[0])
            if numbers:
                panels.setdefault(panel, []).extend((float(numbers[-1]), r) for r in records)
        for panel, known in panels.items():
            x = [number for number, _ in known]
            if len(set(x)) < 3:
                continue
            parts = []
            for name in TRENDS:
                at = statistics.rank_correlation(x, [r["values"][name] for _, r in known])
                word = "up" if at.low > 0 else "down" if at.high < 0 else "no order"
                around = f"{at.estimate:.2f} [{at.low:.2f}, {at.high:.2f}], {word}"
                parts.append(f"{name} {'alike in all' if np.isnan(at.estimate) else around}")
            lines.append(
                f"{panel}, rank correlation with the number over {len(known)} runs of "
                f"{len(set(x))}: {'; '.join(parts)}."
            )
    return lines


def _equal(records: list[Record], name: str) -> set[int]:
    """Numbers of evaluations at which a sampler is of equal quality in all records."""
    return set.intersection(
        *({n for n, good in few.equal(record, name).items() if good} for record in records)
    )


def _first(known: list[tuple[int, str]]) -> str:
    return "none." if not known else f"{min(known)[1]} with {min(known)[0]}."


CONCLUSIONS: dict[str, Callable[[Summary], list[str]]] = {
    "goals": goal_conclusions.goals,
    "against_grpo": language.against_grpo,
    "detectable": language.detectable,
    "power": language.power,
    "within_seeds": language.within_seeds,
    "pretrained": language.pretrained,
    "alike": language.alike,
    "bandits": bandit_conclusions.bandits,
    "beaten": beaten,
    "budgets": budget_conclusions.budgets,
    "by_gate": language.by_gate,
    "cascades": cascade_conclusions.cascades,
    "certified": certified,
    "costly": costly,
    "designs": design_conclusions.designs,
    "detector": detector,
    "few_steps": few_steps,
    "guided": guided,
    "guided_by_dataset": guided_by_dataset,
    "precisions": precisions,
    "rewards": language.rewards,
    "schedulers": language.schedulers,
    "trends": trends,
    "warm_starts": language.warm_starts,
    "windows": windows,
}


def lines(summary: Summary) -> list[str]:
    """The sentences of all conclusions of the table, and what it compares. Raises `ConfigError` for
    an unknown name."""
    for name in summary.plan.conclusions:
        if name not in CONCLUSIONS:
            raise unknown_name("conclusion", name, CONCLUSIONS)
    named = [line for name in summary.plan.conclusions for line in CONCLUSIONS[name](summary)]
    compared = row_conclusions.differences(summary) + row_conclusions.column_differences(summary)
    return named + compared
