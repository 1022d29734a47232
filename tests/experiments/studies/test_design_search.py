"""The study of a search: its numbers are those of its trials."""

import csv
from pathlib import Path

import numpy as np
import pytest

from experiments.runs import launchers
from experiments.studies import design_search
from tests.experiments.tables.test_table import Here

pytestmark = pytest.mark.usefixtures("quick_jobs")


def test_the_study_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setattr(launchers, "launcher", lambda *a: Here())
    settings = design_search.DEFAULTS | {"algorithm": "bc", "data": "pendulum/expert"}
    settings |= {"space": None, "hyperparameter": ["learning_rate=log:1e-5:1e-1"]}
    settings |= {"trials": 3, "steps": 20, "fqe_steps": 5, "sampler": "random"}
    outcome = design_search.measure(settings, 0, tmp_path)
    rows = list(csv.DictReader((tmp_path / "search" / "trials.csv").open()))
    first = max(rows, key=lambda row: float(row["fqe"]))
    assert outcome.values["found"] == float(first["fqe"])
    assert outcome.values["chosen"] == float(first["score_in_task"])
    scores = [float(row["score_in_task"]) for row in rows]
    assert outcome.values["hindsight"] == max(scores)
    assert outcome.values["mean"] == pytest.approx(np.mean(scores))
    assert outcome.curves["trial"] == [1.0, 2.0, 3.0]
    assert outcome.curves["best"][-1] == outcome.values["found"]
    assert outcome.curves["best"] == sorted(outcome.curves["best"])
    rates = sorted(rows, key=lambda row: int(row["trial"]))
    assert outcome.curves["choice learning_rate"] == [float(r["learning_rate"]) for r in rates]
    assert design_search.measure(settings, 0, tmp_path) == outcome  # from what is there


def test_choices_are_numbers_or_one_of_their_kinds() -> None:
    rows = [
        {"trial": "0", "a.members": "10", "a.horizon": "3", "a.penalty": "std", "fqe": "1"},
        {"trial": "1", "a.members": "10", "a.horizon": "7", "a.penalty": "kl", "fqe": "2"},
    ]
    rows = [row | {"a.rate": row["fqe"], "b.rate": "5" + row["trial"]} for row in rows]
    assert design_search.choices([row | {"score_in_task": "0"} for row in rows]) == {
        "choice a.rate": [1.0, 2.0],
        "choice b.rate": [50.0, 51.0],
        "choice horizon": [3.0, 7.0],
        "choice penalty=kl": [0.0, 1.0],
        "choice penalty=std": [1.0, 0.0],
    }
