"""Cells of the table of interventions: equal frames, and evaluations of known policies."""

import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from experiments import studies
from experiments.studies import recovery
from experiments.tables import plan
from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.tasks.door_chain import door_chain_expert

SMALL = {"first": 100, "frames": 30, "updates": 20, "episodes": 5}


def test_known_policies() -> None:
    best = recovery.evaluate(make("DoorChain-v0"), SimpleNamespace(policy=door_chain_expert), 20)
    assert best["success"] == 100 and best["doors"] == 4 and best["recoveries"] < 0.2

    def stubborn(obs: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[1.0, 0.0]]).expand(len(obs), 2)

    stuck = recovery.evaluate(make("DoorChain-v0"), SimpleNamespace(policy=stubborn), 50)
    assert stuck["success"] == 0 and stuck["recoveries"] == 0 and stuck["doors"] < 1

    def impatient(obs: torch.Tensor) -> torch.Tensor:
        along = torch.where(obs[:, 3] > 0, -1.0, 1.0)
        return torch.stack([along, torch.zeros_like(along)], -1)

    # Off the wall, and against it again: a cycle of two or three steps.
    again = recovery.evaluate(make("DoorChain-v0"), SimpleNamespace(policy=impatient), 50)
    assert 30 < again["recoveries"] < 100


@pytest.mark.parametrize("method", recovery.METHODS)
def test_a_cell_of_each_method(method: str, tmp_path: Path) -> None:
    settings = studies.settings_of("recovery", SMALL | {"method": method})
    result = recovery.measure(settings, 0, tmp_path)  # which checks the number of frames
    assert result.curves["frames"] == [0, 30, 60, 90, 120]
    table = tomllib.loads((plan.TABLES / "recovery.toml").read_text())
    assert set(result.values) == set(table["metrics"])
    assert result.values["success 4"] == result.curves["success"][-1]
    share = result.values["recovering"]
    assert share == 100 if method == "recover" else share < 100
    assert (share > 0) == (method not in ("demonstrations", "correct"))


def test_the_table_has_every_method_and_draws(tmp_path: Path) -> None:
    table = tomllib.loads((plan.TABLES / "recovery.toml").read_text())
    for block in table["blocks"]:
        assert [row["method"] for row in block["rows"]] == list(recovery.METHODS)
    curve = {"frames": [0.0, 30.0], "success": [10.0, 20.0]}
    rows = {row["label"]: [{"curves": curve}] * 2 for row in table["blocks"][0]["rows"]}
    (file,) = recovery.draw(rows, tmp_path, "")
    assert file.stat().st_size > 1000
    with pytest.raises(ConfigError, match="method"):
        recovery.measure(studies.settings_of("recovery", {"method": "dagger"}), 0, tmp_path)
