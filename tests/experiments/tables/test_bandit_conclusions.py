"""Paired differences and growth, by hand-made records whose answer is plain."""

import re
from typing import Any

import pytest

from experiments.tables import bandit_conclusions as conclusions
from experiments.tables.plan import Block, Column, Plan, Row
from experiments.tables.summary import BlockSummary, Entry, Summary


def record(seed: int, **values: float) -> dict[str, Any]:
    return {"key": {"seed": seed}, "values": values}


def summary(rows: dict[str, list[dict[str, Any]]], metric: str = "loss") -> Summary:
    column = Column(metric)
    block = Block("Part: more", tuple(Row(label) for label in rows), (column,), (0, 1), "study")
    entries = {(label, metric): Entry(records=known) for label, known in rows.items()}
    return Summary(Plan("t", "T", (block,)), (BlockSummary(block, entries),))


def test_differences_are_paired_by_seed_and_meaned_over_problems() -> None:
    """Per seed: a -0.1 and -0.3, b -0.3 and -0.5, so -0.2 and -0.4 over both; t(1) is 12.706. The
    seed that the reference lacks does not count."""
    rows = {
        "a, epsilon-greedy": [record(0, loss=0.5), record(1, loss=0.9)],
        "a, new": [record(1, loss=0.6), record(0, loss=0.4), record(2, loss=9.0)],
        "b, epsilon-greedy": [record(0, loss=0.5), record(1, loss=0.9)],
        "b, new": [record(0, loss=0.2), record(1, loss=0.4), record(2, loss=9.0)],
        "c, alone": [record(0, loss=0.0)],
    }
    (line,) = conclusions.bandits(summary(rows))
    head, _, tail = line.partition("problems: ")
    assert head == "Part: loss less that of epsilon-greedy, meaned over 2 "
    numbers = [float(x) for x in re.findall(r"[+-][\d.]+", tail.removeprefix("new").rstrip("."))]
    # The library's error of a mean is drawn, and right to about a hundredth.
    assert numbers == pytest.approx([-0.3, -0.3 - 1.27062, -0.3 + 1.27062], rel=0.03)


def test_growth_of_regret_over_horizons() -> None:
    """Regret 3 sqrt(N) and 5 sqrt(N): slope 1/2; one of the six runs exceeds its bound."""
    rows = {
        f"theorem, {n} rounds": [
            record(0, regret=3 * n**0.5, bound=4 * n**0.5),
            record(1, regret=5 * n**0.5, bound=(4 if n == 100 else 6) * n**0.5),
        ]
        for n in (100, 400, 1600)
    }
    (line,) = conclusions.bandits(summary(rows, "regret"))
    assert line.startswith("The theorem's gamma: slope of log regret on log horizon 0.500 [0.500,")
    assert line.endswith("within the bound in 5 of 6 runs.")


@pytest.mark.parametrize("rows", [{}, {"a, other": [record(0, loss=1.0)]}])
def test_nothing_to_compare_says_nothing(rows: dict[str, Any]) -> None:
    assert conclusions.bandits(summary(rows)) == []
