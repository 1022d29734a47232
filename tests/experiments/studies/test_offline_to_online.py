"""The study of the switch from logged data to the task."""

from pathlib import Path

import pytest

from experiments.studies import offline_to_online
from mbrl.errors import ConfigError


@pytest.mark.parametrize(
    ("scores", "depth", "length"),
    [
        ([50, 60, 70, 80, 90], 0, 0),  # no dip
        ([50, 40, 20, 50, 90], 30, 30),  # back at the switch's score after 30 steps
        ([50, 60, 20, 30, 90], 30, 40),  # what came before the lowest point does not count
        ([50, 40, 20, 30, 45], 30, 40),  # never back
        ([50, 40, 60, 20, 55], 30, 40),
    ],
)
def test_depth_and_length_of_a_dip(scores: list[float], depth: float, length: float) -> None:
    assert offline_to_online.dip([0, 10, 20, 30, 40], scores) == (depth, length)


TINY = {
    "steps": 20,
    "online": 12,
    "every": 4,
    "starts": 3,
    "episodes": 3,
    "config": {"batch_size": 8, "hidden": [16]},
}


def test_the_study_measures(tmp_path: Path) -> None:
    collection = {"logged_share": 0.5, "frozen": 4, "updates_per_step": 2}
    settings = offline_to_online.DEFAULTS | TINY | {"collection": collection}
    outcome = offline_to_online.measure(settings, 0, tmp_path)
    scores = outcome.curves["score"]
    assert outcome.curves["step"] == [0.0, 4.0, 8.0, 12.0]
    assert scores[0] == scores[1] == outcome.values["switch"]  # the policy is frozen that long
    assert outcome.values["end"] == scores[-1]
    assert outcome.values["lowest"] == min(scores[1:])
    again = offline_to_online.measure(settings, 0, tmp_path)
    assert again == outcome  # from what is there


def test_panels_of_one_dataset_are_named_by_the_way(tmp_path: Path) -> None:
    record = {"curves": {"step": [0.0, 5.0], "score": [1.0, 2.0]}}
    rows = {f"pendulum/medium {way}, iql": [record] for way in ("half logged", "left behind")}
    (path,) = offline_to_online.draw(rows, tmp_path, "")
    text = path.with_suffix(".csv").read_text()
    assert "half logged,iql" in text and "pendulum/medium" not in text
    offline_to_online.draw(rows | {"reacher/medium half logged, iql": [record]}, tmp_path, "")
    assert "reacher/medium half logged,iql" in path.with_suffix(".csv").read_text()


def test_a_collection_that_is_not_there_is_refused(tmp_path: Path) -> None:
    settings = offline_to_online.DEFAULTS | TINY | {"collection": {"refit_every": 5}}
    with pytest.raises(ConfigError, match="refit_every"):
        offline_to_online.measure(settings, 0, tmp_path)
