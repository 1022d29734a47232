"""The study of goals: scripted policies with a known answer, and a cell."""

from pathlib import Path

import pytest
import torch

from experiments.studies import goals
from mbrl.tasks.experts import expert
from mbrl.tasks.point_maze import PointMaze


def test_the_shortest_path_reaches_all_in_the_least_number_of_steps(tmp_path: Path) -> None:
    settings = goals.DEFAULTS | {"algorithm": goals.SHORTEST, "pairs": 100}
    outcome = goals.measure(settings, 0, tmp_path)
    assert outcome.values == {"success": 100.0, "far": 100.0, "path": 100.0}
    steps = outcome.curves["steps"]
    assert steps == sorted(steps) and outcome.curves["success"] == [100.0] * 5
    least, taken = goals.attempts(PointMaze("medium"), expert("PointMaze-medium-v0"), 100)
    assert torch.equal(least, taken)


def test_a_policy_that_waits_and_one_at_half_speed() -> None:
    task, act = PointMaze("medium"), expert("PointMaze-medium-v0")
    least, taken = goals.attempts(task, lambda obs: 0 * act(obs), 50)
    assert torch.isinf(taken).all()
    least, taken = goals.attempts(task, lambda obs: 0.5 * act(obs), 50)
    assert (taken >= 1.5 * least - 2).all() and torch.isfinite(taken).float().mean() > 0.5


def test_a_cell_and_its_figure(tmp_path: Path) -> None:
    small = {"hidden": [8], "batch_size": 16}
    settings = goals.DEFAULTS | {"config": small, "steps": 20, "episodes": 5, "pairs": 50}
    outcome = goals.measure(settings, 0, tmp_path / "cell")
    values = outcome.values
    assert values["success"] == pytest.approx(sum(outcome.curves["success"]) / 5)
    assert 0 <= values["path"] <= values["success"] <= 100
    record = {"values": values, "curves": outcome.curves}
    files = goals.draw({"medium-navigate, gcbc": [record, record]}, tmp_path, "")
    assert [f.name for f in files] == ["success.png"] and files[0].exists()
