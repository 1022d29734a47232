"""The study of several objectives, with a small environment in the place of mo-gymnasium's."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from algorithms.objectives.multi_weight_q import MultiWeightQConfig
from experiments.studies import objectives
from mbrl.errors import ConfigError, MissingPackage
from tests.algorithms.objectives.vector_rewards import Shore


class Known(Shore):
    """The shore with its front."""

    def pareto_front(self, gamma: float) -> list[np.ndarray]:
        cost = [-(1 - gamma ** (k + 1)) / (1 - gamma) for k in range(4)]
        return [np.array([gamma**k * self.treasures[k], cost[k]]) for k in range(4)]


@pytest.fixture
def shore(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setitem(sys.modules, "mo_gymnasium", SimpleNamespace(make=lambda name: Known()))
    monkeypatch.setitem(objectives.TASKS, "shore", ((0.0, -5.0), 1))
    small = {"task": "shore", "elsewhere": "shore", "trials": 3, "steps": 300, "held_out": 2}
    return objectives.DEFAULTS | small


def test_a_run_that_finds_the_convex_front(shore: dict[str, Any]) -> None:
    share, count = objectives.run("shore", MultiWeightQConfig(), 0, 2000)
    assert 90 < share <= 100 and count >= 2


@pytest.mark.parametrize("sampler", objectives.SAMPLERS)
def test_a_cell(shore: dict[str, Any], sampler: str, tmp_path: Path) -> None:
    settings = shore | {"sampler": sampler}
    outcome = objectives.measure(settings, 0, tmp_path)
    assert outcome == objectives.measure(settings, 0, tmp_path)
    assert len(outcome.curves["best"]) == (1 if sampler == "default" else 3)
    assert outcome.values["tuned"] == outcome.curves["best"][-1]
    assert outcome.values["held out"] == outcome.values["elsewhere"]  # the same task and seeds
    record = {"values": outcome.values, "curves": outcome.curves}
    drawn = objectives.draw({f"shore, {sampler}": [record, record]}, tmp_path, "")
    assert [file.exists() for file in drawn] == ([] if sampler == "default" else [True])


def test_wrong_sampler_and_missing_package(
    shore: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="sampler"):
        objectives.measure(shore | {"sampler": "tp"}, 0, tmp_path)
    monkeypatch.setitem(sys.modules, "mo_gymnasium", None)
    with pytest.raises(MissingPackage, match="objectives"):
        objectives.run("shore", MultiWeightQConfig(), 0, 10)
