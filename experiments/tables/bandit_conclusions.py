"""Learners beside a reference on the same problems: paired differences over seeds."""

import re

import numpy as np

from experiments.tables.records import Record
from experiments.tables.summary import BlockSummary, Summary, records_of
from mbrl import statistics

REFERENCES = ("uniform", "epsilon-greedy", "likeliest label", "SquareCB (squared loss)")


def bandits(summary: Summary) -> list[str]:
    """For each block whose rows are "problem, learner": the first metric of every learner less that
    of each reference, meaned over problems, with its 95 % interval over seeds (t of paired
    differences); and for rows "theorem, N rounds" the slope of log regret on log N."""
    lines = []
    for block in summary.blocks:
        known = records_of(block)
        for reference in REFERENCES:
            lines += _against(block, known, reference)
        lines += _growth(known)
    return lines


def _against(block: BlockSummary, known: dict[str, list[Record]], reference: str) -> list[str]:
    metric = block.block.columns[0].label
    by_line: dict[str, dict[str, dict[int, float]]] = {}
    for label, records in known.items():
        panel, _, line = label.partition(", ")
        values = {r["key"]["seed"]: float(r["values"][metric]) for r in records}
        by_line.setdefault(line, {})[panel] = values
    if reference not in by_line:
        return []
    parts = []
    for line, panels in by_line.items():
        shared = [p for p in panels if p in by_line[reference]]
        if line == reference or not shared:
            continue
        pairs = [(panels[p], by_line[reference][p]) for p in shared]
        seeds = sorted(set.intersection(*(set(a) & set(b) for a, b in pairs)))
        if len(seeds) < 2:
            continue
        each = np.array([[a[s] - b[s] for s in seeds] for a, b in pairs]).mean(0)
        mean, low, high = statistics.confidence_interval(each, statistics.mean)
        parts.append(f"{line} {mean:+.3g} [{low:+.3g}, {high:+.3g}]")
    if not parts:
        return []
    count = max(len(panels) for panels in by_line.values())
    where = f", meaned over {count} problems" if count > 1 else ""
    title = block.block.title.partition(":")[0]
    return [f"{title + ': ' if title else ''}{metric} less that of {reference}{where}: "
            f"{'; '.join(parts)}."]  # fmt: skip


def _growth(known: dict[str, list[Record]]) -> list[str]:
    by_seed: dict[int, list[tuple[float, float]]] = {}
    bounded = []
    for label, records in known.items():
        rounds = re.fullmatch(r"theorem, (\d+) rounds", label)
        for r in records if rounds else ():
            at = (np.log(float(rounds[1])), np.log(r["values"]["regret"])) if rounds else (0.0, 0.0)
            by_seed.setdefault(r["key"]["seed"], []).append((float(at[0]), float(at[1])))
            bounded.append(r["values"]["regret"] <= r["values"]["bound"])
    points = [np.array(at).T for at in by_seed.values() if len(at) > 2]
    slopes = [float(np.polyfit(x, y, 1)[0]) for x, y in points]
    if len(slopes) < 2:
        return []
    mean, low, high = statistics.confidence_interval(np.array(slopes), statistics.mean)
    return [
        f"The theorem's gamma: slope of log regret on log horizon {mean:.3f} [{low:.3f}, "
        f"{high:.3f}]; the regret is within the bound in {sum(bounded)} of {len(bounded)} runs."
    ]
