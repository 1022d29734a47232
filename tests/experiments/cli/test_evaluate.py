"""The verb `evaluate`: where its numbers are written."""

from pathlib import Path

import numpy as np
import pytest

from experiments.cli import evaluate
from mbrl import tasks
from mbrl.errors import ConfigError
from mbrl.tasks import Task


class Still:
    """Does nothing."""

    def __init__(self, spec) -> None:
        self.spec = spec


@pytest.fixture(name="evaluated")
def _evaluated(monkeypatch) -> list[int]:
    """Numbers of episodes that were asked for; each returns 1.5."""
    asked: list[int] = []
    task: Task = tasks.make("Pendulum-v1")

    def returns(agent, task, episodes, **options) -> np.ndarray:
        asked.append(episodes)
        return np.full(episodes, 1.5)

    monkeypatch.setattr(evaluate, "evaluate", returns)
    own = (Still(task.spec), "an agent", task)
    monkeypatch.setattr(evaluate.Evaluate, "_agent", lambda self: own)
    return asked


def test_returns_are_written_into_a_new_folder(tmp_path: Path, evaluated: list[int]) -> None:
    out = tmp_path / "new" / "folder" / "returns.npz"
    assert evaluate.Evaluate(tmp_path, episodes=3, out=out).main() == 0
    assert evaluated == [3] and np.load(out)["returns"].tolist() == [1.5] * 3


@pytest.mark.parametrize("option", ["out", "film"])
def test_a_file_of_another_kind_costs_no_evaluation(
    option: str, tmp_path: Path, evaluated: list[int]
) -> None:
    """NumPy wrote returns.csv.npz."""
    with pytest.raises(ConfigError, match=rf"--{option} is .*returns\.csv; the name must end with"):
        evaluate.Evaluate(tmp_path, **{option: tmp_path / "returns.csv"}).main()
    assert evaluated == []
