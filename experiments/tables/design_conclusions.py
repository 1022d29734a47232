"""What the trials of a search at random say of each design choice, as sentences under a table."""

from collections.abc import Callable

import numpy as np
from scipy import stats

from experiments.tables.language_conclusions import span
from experiments.tables.records import Record
from experiments.tables.summary import Summary, records_of
from mbrl import statistics


def designs(summary: Summary) -> list[str]:
    """Of rows that are drawn at random: the mean score of the trials with each kind of a choice,
    and rank correlations of the score with the choices that are numbers; means over seeds, with
    their intervals. Samplers that follow the objective choose what they try by it, so that their
    trials say less."""
    lines = []
    for block in summary.blocks:
        for label, records in records_of(block).items():
            drawn = [r for r in records if r["key"]["settings"].get("sampler") == "random"]
            names = sorted({name for r in drawn for name in r["curves"]})  # a kind may lack a seed
            kinds = [n.removeprefix("choice ") for n in names if n.startswith("choice ")]
            of_kinds = [_entry(drawn, kind, _mean_score) for kind in kinds if "=" in kind]
            of_numbers = [_entry(drawn, kind, _correlation) for kind in kinds if "=" not in kind]
            if of_kinds:
                lines.append(f"{label}, mean score of trials: {', '.join(of_kinds)}.")
            if of_numbers:
                parts = ", ".join(of_numbers)
                lines.append(f"{label}, rank correlation with the score over trials: {parts}.")
    return lines


def _entry(
    records: list[Record], kind: str, measured: Callable[[np.ndarray, Record], float]
) -> str:
    known = [r for r in records if f"choice {kind}" in r["curves"]]
    each = np.array([measured(np.array(r["curves"][f"choice {kind}"]), r) for r in known])
    digits = 1 if "=" in kind else 2
    return f"{kind} {span(statistics.confidence_interval(each, statistics.mean), digits)}"


def _mean_score(chosen: np.ndarray, record: Record) -> float:
    return float(np.array(record["curves"]["score"])[chosen == 1].mean())


def _correlation(chosen: np.ndarray, record: Record) -> float:
    return float(stats.spearmanr(chosen, record["curves"]["score"]).statistic)
