"""What cells of every study have in common."""

import os
import types
from pathlib import Path
from typing import Any

import pytest

from experiments import studies
from experiments.runs import folders, jobs, study


def test_a_cell_takes_the_time_of_all_its_sessions(tmp_path: Path, monkeypatch) -> None:
    """Two that died, the first 100 seconds after its begin and the second 10, and the last one."""
    sessions: list[float] = []

    def measure(settings: dict[str, Any], seed: int, folder: Path) -> studies.Outcome:
        began = folders.read_json(folder / "sessions.json")["began"]
        sessions.append(began)
        if len(sessions) == 3:
            return studies.Outcome({"x": 1.0}, {})
        (folder / "part").write_text("kept")
        late = began + (100.0 if len(sessions) == 1 else 10.0)
        os.utime(folder / "part", (late, late))
        raise KeyboardInterrupt

    stub = types.SimpleNamespace(DEFAULTS={}, measure=measure)
    monkeypatch.setattr(studies, "module", lambda name: stub)
    monkeypatch.setattr(folders.time, "time", iter([1000.0, 5000.0, 9000.0]).__next__)
    cell = tmp_path / "cell"
    study.create("stub", {}, 0, cell)
    os.utime(cell / "config.json", (0, 0))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            jobs.resume(cell)
        os.utime(cell / "sessions.json", (0, 0))  # the clock of the sessions is not the system's
        (cell / "log.txt").write_text("started again")
    jobs.resume(cell)
    assert sessions == [1000.0, 5000.0, 9000.0]
    assert jobs.seconds(cell) == pytest.approx(110.0, abs=5.0)
