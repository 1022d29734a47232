"""The study of algorithms that learn in a task."""

from pathlib import Path

import pytest

from experiments.studies import online


def test_numbers_of_a_curve() -> None:
    """At the last evaluation before a quarter and a half; never at the level: all steps."""
    steps, scores = [10.0, 20.0, 30.0, 40.0, 50.0], [1.0, 5.0, 90.0, 30.0, 40.0]
    known = online.summary(steps, scores, 80.0)
    assert known == {"quarter": 1.0, "half": 5.0, "end": 40.0, "mean": 33.2, "reached": 30.0}
    assert online.summary(steps, scores, 95.0)["reached"] == 50.0
    assert online.summary(steps[2:3], [7.0], 80.0)["quarter"] == 7.0  # a single evaluation


def test_the_study_measures(tmp_path: Path) -> None:
    settings = online.DEFAULTS | {"steps": 12, "every": 4, "starts": 2}
    settings |= {"collection": {"warmup": 3}, "config": {"learner": {"hidden": [8]}}}
    outcome = online.measure(settings, 0, tmp_path)
    assert outcome.curves["step"] == [4.0, 8.0, 12.0]
    assert outcome.values["end"] == outcome.curves["score"][-1]
    assert outcome.values["quarter"] == outcome.curves["score"][0]
    assert online.measure(settings, 0, tmp_path).values == pytest.approx(outcome.values)
