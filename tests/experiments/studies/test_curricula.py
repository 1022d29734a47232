"""The study of curricula: the student, the teacher that knows it, a small cell and its figure."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")

from experiments.studies import curricula
from experiments.studies.competence_grid import CompetenceGrid, Oracle


def test_a_locked_cell_learns_nothing() -> None:
    student = CompetenceGrid(4, (0, 3))
    far, first = np.array([0.9, 0.1]), np.array([0.0, 1.0])
    assert [student.train(far) for _ in range(5)] == [0.0] * 5
    for k in range(74):
        assert student.train(first) == pytest.approx((k + 1) / 100)
    beside = np.array([0.3, 0.9])  # the cell (1, 3)
    assert student.train(beside) == 0.0
    student.train(first)  # now 75
    assert student.train(beside) == pytest.approx(0.01)
    assert student.train(np.array([0.3, 0.6])) == 0.0  # diagonal to the first cell
    for _ in range(50):
        student.train(first)
    assert student.train(first) == 1.0 and student.mastered() == pytest.approx(100 / 16)


def test_the_oracle_needs_76_tasks_a_cell() -> None:
    student = CompetenceGrid(3, (2, 0))
    curricula.teach(Oracle(student, 0), student, 9 * 76 - 1)
    assert student.mastered() == pytest.approx(100 * 8 / 9)
    oracle = Oracle(student, 0)
    curricula.teach(oracle, student, 1)
    assert student.mastered() == 100.0


def test_a_cell_and_its_figure(tmp_path: Path) -> None:
    settings = curricula.DEFAULTS | {"size": 2, "episodes": 310, "before": 150, "past": 2}
    outcome = curricula.measure(settings, 0, tmp_path)
    again = curricula.measure(settings, 0, tmp_path)
    assert outcome == again and set(outcome.values) == set(curricula.METHODS)
    assert outcome.values["oracle"] == 100.0
    record = {"values": outcome.values, "curves": outcome.curves}
    (file,) = curricula.draw({"students of a corner": [record, record]}, tmp_path, "")
    assert file.exists()
