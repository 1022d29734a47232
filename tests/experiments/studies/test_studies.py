"""What cells of every study have in common."""

import os
import types
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from experiments import studies
from experiments.runs import folders, jobs, study
from experiments.tables import records
from mbrl.data import load
from mbrl.data.fingerprint import fingerprint
from mbrl.errors import ConfigError


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

    stub = types.SimpleNamespace(VERSION=1, DEFAULTS={}, measure=measure)
    monkeypatch.setattr(studies, "module", lambda name: stub)
    monkeypatch.setattr(folders.time, "time", iter([1000.0, 5000.0, 9000.0]).__next__)
    cell = tmp_path / "cell"
    study.create("stub", {}, 0, cell)
    os.utime(cell / "config.json", (0, 0))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            jobs.resume(cell)
        for name in ("sessions.json", "manifest.json"):  # their clock is not the sessions'
            os.utime(cell / name, (0, 0))
        (cell / "log.txt").write_text("started again")
    jobs.resume(cell)
    assert sessions == [1000.0, 5000.0, 9000.0]
    assert jobs.seconds(cell) == pytest.approx(110.0, abs=5.0)


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_a_cell_runs_in_its_precision_and_says_so(tmp_path: Path, monkeypatch, precision) -> None:
    seen: list[str] = []
    outcome = studies.Outcome({"x": 1.0}, {})
    stub = types.SimpleNamespace(VERSION=1, DEFAULTS={}, measure=lambda *_: outcome)
    monkeypatch.setattr(studies, "module", lambda name: stub)
    monkeypatch.setattr(study, "set_matmul_precision", seen.append)
    study.create("stub", {}, 0, tmp_path / "cell", matmul_precision=precision)
    jobs.resume(tmp_path / "cell", quiet=True)
    assert seen == [precision]
    assert folders.read_json(tmp_path / "cell" / "manifest.json")["matmul_precision"] == precision


def test_a_record_has_versions_and_the_fingerprint_of_its_data(tmp_path: Path, monkeypatch) -> None:
    """An older record without them is of the same cell."""
    defaults = {"data": "pendulum/expert"}
    outcome = studies.Outcome({"x": 1.0}, {})
    stub = types.SimpleNamespace(VERSION=1, DEFAULTS=defaults, measure=lambda *_: outcome)
    monkeypatch.setattr(studies, "module", lambda name: stub)
    study.create("stub", {}, 0, tmp_path / "cell")
    jobs.resume(tmp_path / "cell", quiet=True)
    key = {"study": "stub", "version": 1, "settings": defaults, "seed": 0, "threads": 1}
    record = records.write(tmp_path / "record.json", key, tmp_path / "cell")
    assert record["packages"]["torch"] == metadata.version("torch")
    assert record["fingerprint"] == fingerprint(load("pendulum/expert"))
    assert record["processor"] and "commit" in record
    (tmp_path / "cell" / "manifest.json").unlink()
    older = records.write(tmp_path / "older.json", key, tmp_path / "cell")
    assert "packages" not in older and "fingerprint" not in older
    assert records.agree(older, record) and not records.agree(
        older, record | {"values": {"x": 2.0}}
    )


@pytest.mark.parametrize(
    ("name", "given", "known"),
    [
        ("temporal_abstraction", {"learner": "kodes"}, "actions, codes, random"),
        ("verdicts", {"valued_on": "whole"}, "all, held-out"),
        ("solve_choice", {"ends": "learnt"}, "learned, rule"),
        ("systems", {"part": "streams", "inference": "remote"}, "inline, local, served"),
        ("curricula", {"first": "corners"}, "any, corner"),
        ("objectives", {"elsewhere": "deep-sea"}, "deep-sea-treasure-v0"),
        ("imagined", {"source": "imagined", "faults": ["labels"]}, "label, missing, teleport"),
    ],
)
def test_a_name_that_a_study_does_not_know_is_refused(
    name: str, given: dict[str, Any], known: str, tmp_path: Path
) -> None:
    """Before anything is measured, and not taken for another one."""
    settings = studies.settings_of(name, given)
    with pytest.raises(ConfigError, match=f"unknown .*Known: .*{known}"):
        studies.module(name).measure(settings, 0, tmp_path)
    assert not any(tmp_path.iterdir())
