"""The study of tasks that differ from the data: evaluated where it says, from one training run."""

from pathlib import Path

import pytest

import algorithms
from experiments.studies import adaptation, prerequisites
from mbrl import data, tasks
from mbrl.evaluation import evaluate


def test_scores_are_those_of_the_changed_tasks(tmp_path: Path) -> None:
    settings = adaptation.DEFAULTS | {
        "algorithm": "bc", "config": {"hidden": [8]}, "steps": 50, "episodes": 2, "starts": 2,
        "values": [0.3, 0.5, 0.9],
    }  # fmt: skip
    result = adaptation.measure(settings, 0, tmp_path)
    agent = algorithms.load(tmp_path / "run" / "checkpoint.pt")
    spec = data.load("swingup/medium-replay").spec
    for value, score in zip(result.curves["value"], result.curves["score"], strict=True):
        task = tasks.make("CartPoleSwingUp-v0", half_length=value)
        assert score == pytest.approx(spec.score(evaluate(agent, task, 2).mean()))
    low, middle, high = result.curves["score"]
    assert result.values == pytest.approx(
        {"logged": middle, "others": (low + high) / 2, "worst": min(low, high)}
    )
    record = {"values": result.values, "curves": result.curves}
    (file,) = adaptation.draw({"half length (m), memory": [record]}, tmp_path, "")
    assert file.exists() and file.with_suffix(".csv").exists()


def test_settings_reach_the_run() -> None:
    settings = {
        "algorithm": "neubay",
        "data": "pendulum/expert",
        "config": {"learner": {"tape": 64}},
    }
    assert prerequisites.config(settings).learner.tape == 64
