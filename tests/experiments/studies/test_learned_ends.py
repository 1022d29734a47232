"""The study of learned ends: its numbers are those of its parts, and shares count episodes."""

from pathlib import Path

import pytest
import torch

from experiments import studies
from experiments.studies import learned_ends as study
from mbrl.data import load
from mbrl.tasks import make_for
from world_models import TrueDynamics, learned_ends

TINY = {
    "model": {"members": 3, "elites": 2, "hidden": [8], "min_epochs": 1, "max_epochs": 2},
    "starts": 200,
    "steps": 5,
}


def test_a_cell_and_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_ends, "UPDATES", 100)
    values = study.measure(study.DEFAULTS | TINY, 0, tmp_path).values
    assert values["expected"] == pytest.approx(values["actual"], rel=0.5)
    assert 0 < values["surprise"] < values["constant"]
    assert all(0 <= values[name] <= 100 for name in ("task", "by_rule", "learned"))
    again = study.measure(study.DEFAULTS | TINY, 0, tmp_path)  # from the fit that is there
    assert again.values == values
    assert "learned_ends" in studies.STUDIES
    (picture,) = study.draw({"a": [{"values": values}] * 2}, tmp_path, "")
    assert picture.exists()
    assert study.draw({"a": [{"values": values}]}, tmp_path, "") == []  # one seed has no interval


def test_shares_are_those_of_stepping_the_task() -> None:
    """Poles that start beyond their limit end at once, and those at rest not so soon."""
    data = load("invertedpendulum/random")
    task = make_for(data.spec)
    starts = torch.zeros(40, 4)
    starts[:10, 1] = 0.5
    assert study.ended_share(TrueDynamics(task), starts, 1, 0) == 25.0
