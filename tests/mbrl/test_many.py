"""Agents trained side by side end as alone."""

from typing import Any

import pytest
import torch

from algorithms import ALGORITHMS, EDAC, TD3BC
from experiments.settings import build_config
from mbrl.data import load
from mbrl.errors import ConfigError
from mbrl.many import fit_many
from mbrl.training import Metrics, Trainable
from tests.conftest import random_dataset
from tests.small import CONFIGS
from world_models import EnsembleDynamics

DATASET = load("pendulum/medium-replay")


@pytest.mark.parametrize("name", ["edac", "td3_bc", pytest.param("ravl", marks=pytest.mark.long)])
def test_every_seed_ends_as_it_does_alone(name: str) -> None:
    def make(seed: int) -> Any:
        return ALGORITHMS[name][0](DATASET.spec, build_config(name, CONFIGS[name]), seed=seed)

    together = fit_many([make(seed) for seed in range(4)], DATASET, 20, workers=3)
    for seed, agent in enumerate(together):
        alone = make(seed).fit(DATASET, 20, callbacks=[])
        assert agent.step == alone.step == 20
        for key, module in alone.modules.items():
            for field, value in module.state_dict().items():
                assert torch.equal(agent.modules[key].state_dict()[field], value), (key, field)


def test_others_finish_where_one_fails() -> None:
    agents = [TD3BC(DATASET.spec, seed=seed) for seed in range(3)]

    def fail(event: str, agent: Trainable, metrics: Metrics) -> None:
        if agent.seed == 1 and agent.step == 2:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken") as caught:
        fit_many(agents, DATASET, 5, callbacks=lambda agent: [fail])
    assert [agent.step for agent in agents] == [5, 2, 5]
    assert "agent 1 of 3" in caught.value.__notes__[0]


def test_what_cannot_be_trained_is_refused() -> None:
    agent = EDAC(DATASET.spec)
    with pytest.raises(ConfigError, match="twice"):
        fit_many([agent, agent], DATASET, 1)
    with pytest.raises(ConfigError, match="steps"):
        fit_many([agent], DATASET, -1)
    with pytest.raises(ConfigError, match="differ"):
        fit_many([agent], load("hopper/medium"), 1)
    with pytest.raises(ConfigError, match="agents is one EDAC; give a list"):
        fit_many(agent, DATASET, 1)  # type: ignore[arg-type]
    for workers in (0, -1, 1.5):
        with pytest.raises(ConfigError, match=f"workers is {workers}"):
            fit_many([agent], DATASET, 1, workers=workers)  # type: ignore[arg-type]
    assert fit_many([], DATASET, 1) == []


def test_a_world_model_that_several_would_change_is_refused() -> None:
    data = random_dataset("Pendulum-v1", 300)
    configs = {name: build_config(name, CONFIGS[name]) for name in ("ravl", "rambo")}
    model = EnsembleDynamics(data.spec, configs["ravl"].model)

    def made(name: str, seed: int) -> Any:
        return ALGORITHMS[name][0](data.spec, configs[name], seed=seed, model=model)

    with pytest.raises(
        ConfigError, match=r"agents \[0, 1\] share a world model that is not fitted"
    ):
        fit_many([made("ravl", 0), made("ravl", 1)], data, 2)
    fit_many([made("ravl", 0)], data, 2, callbacks=lambda agent: [])  # one alone fits it
    first, second = fit_many(
        [made("ravl", 0), made("ravl", 1)], data, 2, callbacks=lambda agent: []
    )
    assert first.learned is second.learned is model and first.step == second.step == 2
    before = [p.clone() for p in model.network.parameters()]
    adversary, _ = fit_many(
        [made("rambo", 0), made("ravl", 1)], data, 2, callbacks=lambda agent: []
    )
    assert adversary.learned is not model and adversary.step == 2
    assert all(torch.equal(p, q) for p, q in zip(before, model.network.parameters(), strict=True))
