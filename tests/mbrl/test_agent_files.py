"""Agents with parts of one's own: read back with what they were made of, or not at all."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import algorithms
from algorithms import ALGORITHMS
from experiments.settings import build_config
from mbrl.errors import CheckpointError
from mbrl.tasks import make
from mbrl.types import Dataset, Spec
from tests.small import CONFIGS, MODEL
from world_models import EnsembleConfig, EnsembleDynamics, TrueDynamics

OTHER = EnsembleConfig(**(MODEL | {"hidden": (5,), "members": 4, "weight_decay": (0.0,)}))
IMAGINE = [
    "ravl",
    "neubay",
    "pets",
    *(
        pytest.param(n, marks=pytest.mark.long)
        for n in ("mbpo", "morel", "mobile", "rambo", "shac")
    ),
]


def far(obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
    return next_obs[:, 2].abs() > 1.0


def trained(name: str, data: Dataset, model: Any) -> Any:
    cls, _ = ALGORITHMS[name]
    agent = cls(data.spec, build_config(name, CONFIGS[name]), model=model, seed=1)
    return agent.fit(data, 2, callbacks=[])


def ends(model: Any, data: Dataset) -> Tensor:
    rows = data.transitions
    return model.predict(rows.obs, rows.action, torch.Generator().manual_seed(0)).terminated


@pytest.mark.parametrize("name", IMAGINE)
def test_a_model_that_settings_describe_is_made_again(
    name: str, pendulum: Dataset, tmp_path: Path
) -> None:
    """Other sizes than those of the agent's settings, and no end or the task's own."""
    rule = make("Pendulum-v1").terminates
    for termination in (None, rule):
        model = EnsembleDynamics(pendulum.spec, OTHER, termination=termination)
        agent = trained(name, pendulum, model)
        agent.save(tmp_path / "agent.pt")
        again = algorithms.load(tmp_path / "agent.pt")
        assert again.config.model == OTHER and (again.model.termination is None) == (
            not termination
        )
        own = agent.model.network  # RAMBO's is a copy
        for a, b in zip(own.parameters(), again.model.network.parameters(), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("name", IMAGINE)
def test_a_rule_of_ends_of_ones_own_is_asked_for_again(
    name: str, pendulum: Dataset, tmp_path: Path
) -> None:
    config = build_config(name, CONFIGS[name]).model

    def made(sizes: EnsembleConfig = config) -> EnsembleDynamics:
        return EnsembleDynamics(pendulum.spec, sizes, termination=far)

    agent = trained(name, pendulum, made())
    agent.save(tmp_path / "agent.pt")
    for load in (algorithms.load, type(agent).load):
        with pytest.raises(CheckpointError, match=r"give it again: load\(path, model=\.\.\.\)"):
            load(tmp_path / "agent.pt")
    again = type(agent).load(tmp_path / "agent.pt", model=made())
    for other in (again, copy.deepcopy(agent)):
        assert other.model is not agent.model
        expected = ends(agent.model, pendulum)
        assert torch.equal(ends(other.model, pendulum), expected) and expected.any()
    with pytest.raises(CheckpointError, match="does not fit into model"):
        type(agent).load(tmp_path / "agent.pt", model=made(OTHER))


def test_true_dynamics_and_a_task_of_ones_own(pendulum: Dataset, tmp_path: Path) -> None:
    truth = TrueDynamics(make("Pendulum-v1"))
    trained("ravl", pendulum, truth).save(tmp_path / "agent.pt")
    with pytest.raises(CheckpointError, match="part of its own"):
        algorithms.load(tmp_path / "agent.pt")
    assert algorithms.load(tmp_path / "agent.pt", model=truth).model is truth
    spec = Spec("cart", 3, 1, None, (-1.0,), (1.0,), 200)
    config = build_config("ravl", CONFIGS["ravl"])
    model = EnsembleDynamics(spec, config.model, termination=far)
    agent = ALGORITHMS["ravl"][0](spec, config, model=model)
    assert copy.deepcopy(agent).model.termination is far
