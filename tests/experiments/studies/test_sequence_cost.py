"""The study of what an update costs by the length of its tape."""

from pathlib import Path

import pytest

from experiments.studies import sequence_cost, settings_of


def test_every_length_is_timed_and_the_exponent_is_that_of_its_points(tmp_path: Path) -> None:
    small = {
        "data": "pendulum/medium-replay",
        "learner": {"memory": {"width": 8, "states": 4}, "hidden": [8], "critics": 2},
        "lengths": [16, 64, 256, 1024],
        "repeats": 2,
    }
    result = sequence_cost.measure(settings_of("sequence_cost", small), 0, tmp_path)
    ms = result.curves["ms"]
    assert result.curves["length"] == small["lengths"] and min(ms) > 0
    assert result.values["ms_short"] == pytest.approx(ms[0], rel=1e-3)
    assert result.values["ms_long"] == pytest.approx(ms[-1], rel=1e-3)
    # Two points make a straight line: a ratio of 4 in length.
    assert 4 ** result.values["exponent"] == pytest.approx(ms[3] / ms[2], rel=1e-2)
    record = {"values": result.values, "curves": result.curves}
    (file,) = sequence_cost.draw({"update, small": [record, record]}, tmp_path, "")
    assert file.stat().st_size > 5000
