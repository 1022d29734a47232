"""Differences of learners of goals, by hand-made records whose answer is plain."""

import re

import pytest

from experiments.tables import goal_conclusions
from tests.experiments.tables.test_bandit_conclusions import record, summary


def test_differences_are_paired_by_seed_and_meaned_over_datasets() -> None:
    """Over the datasets 10 (of the two seeds that both have: 8 and 12) and 20: 15, and Student's
    t(1) 12.706 times the error of 5. Blocks are no maze, and a dataset without the other counts
    not."""

    def values(seed: int, success: float) -> dict:
        return record(seed, success=success, far=0.0, path=1.0)

    rows = {
        "a, saw": [values(1, 62.0), values(0, 58.0), values(2, 0.0)],
        "a, hiql": [values(0, 50.0), values(1, 50.0)],
        "b, saw": [values(0, 70.0)],
        "b, hiql": [values(0, 50.0), values(1, 99.0)],
        "c, saw": [values(0, 99.0)],
        "blocks-play, saw": [values(0, 99.0)],
        "blocks-play, hiql": [values(0, 0.0)],
    }
    (line,) = goal_conclusions.goals(summary(rows, "success"))
    assert line.startswith("saw less hiql over 2 datasets: success ")
    numbers = [float(x) for x in re.findall(r"-?\d+\.\d+", line)]
    assert numbers[:3] == pytest.approx([15.0, 15 - 63.53, 15 + 63.53], rel=0.03)
    assert numbers[3:] == [0.0] * 6
