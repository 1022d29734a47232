"""The growing files of a run: wider headers, torn rows, cutting back."""

from pathlib import Path

import numpy as np

from mbrl.records import Evaluations, MetricsFile


def test_new_columns_and_torn_rows(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    file = MetricsFile(path)
    file.append({"step": 100, "a": 0.1})
    file.append({"step": 200, "a": 0.2, "b": 1.5})
    assert [r["b"] for r in file.rows()] == ["", "1.5"]
    path.write_text(path.read_text() + "300,0.")  # a crash in the middle of a row
    again = MetricsFile(path)
    assert [r["step"] for r in again.rows()] == ["100", "200"]
    again.truncate("step", 150)
    again.append({"step": 200, "a": 0.25})
    rows = MetricsFile(path).rows()
    assert [(r["step"], float(r["a"])) for r in rows] == [("100", 0.1), ("200", 0.25)]
    again.truncate("step", 0)
    assert not path.exists()
    again.append({"step": 1, "c": 2.0})
    assert MetricsFile(path).rows() == [{"step": "1", "c": "2.0"}]


def test_numbers_survive_exactly(tmp_path: Path) -> None:
    file, value = MetricsFile(tmp_path / "m.csv"), 0.1 + 0.2
    file.append({"step": 1, "x": value})
    assert float(file.rows()[0]["x"]) == value


def test_evaluations_round_trip(tmp_path: Path) -> None:
    kept = Evaluations()
    kept.add(10, np.array([1.0, 2.0]))
    kept.add(20, np.array([3.0, 4.0, 5.0]))
    kept.save(tmp_path / "e.npz")
    for got in (Evaluations.load(tmp_path / "e.npz"), Evaluations()):
        if not got.steps:
            got.load_state_dict(kept.state_dict())
        assert got.steps == [10, 20]
        assert [r.tolist() for r in got.returns] == [[1.0, 2.0], [3.0, 4.0, 5.0]]


def test_no_evaluation_yet_is_read_as_none(tmp_path: Path) -> None:
    Evaluations().save(tmp_path / "e.npz")
    assert Evaluations.load(tmp_path / "e.npz").steps == []
