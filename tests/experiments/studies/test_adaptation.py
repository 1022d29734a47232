"""The study of tasks that differ from the data: evaluated where it says, from one training run."""

from pathlib import Path

import pytest

import algorithms
from experiments.studies import adaptation, learned
from mbrl import data, tasks
from mbrl.evaluation import evaluate


def test_scores_are_those_of_the_changed_tasks(tmp_path: Path) -> None:
    settings = adaptation.DEFAULTS | {
        "algorithm": "bc", "config": {"hidden": [8]}, "steps": 50, "episodes": 2, "starts": 2,
        "values": [0.3, 0.5, 0.9],
    }  # fmt: skip
    found = adaptation.measure(settings, 0, tmp_path)
    agent = algorithms.load(tmp_path / "run" / "checkpoint.pt")
    spec = data.load("swingup/medium-replay").spec
    for value, score in zip(found.curves["value"], found.curves["score"], strict=True):
        task = tasks.make("CartPoleSwingUp-v0", half_length=value)
        assert score == pytest.approx(spec.score(evaluate(agent, task, 2).mean()))
    low, middle, high = found.curves["score"]
    assert found.values == pytest.approx(
        {"logged": middle, "others": (low + high) / 2, "worst": min(low, high)}
    )
    record = {"values": found.values, "curves": found.curves}
    (file,) = adaptation.draw({"half length (m), memory": [record]}, tmp_path, "")
    assert file.exists() and file.with_suffix(".csv").exists()


def test_settings_reach_the_run() -> None:
    settings = {
        "algorithm": "neubay",
        "data": "pendulum/expert",
        "config": {"learner": {"tape": 64}},
    }
    assert learned.config(settings).learner.tape == 64
