"""Rewards times 1000 over the range of returns, as CORL and IQL's authors have it; logged rows and
experience in the shares that are asked for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms import ALGORITHMS
from algorithms.sources.imagined import RefitConfig
from experiments.settings import build_config, preset_config
from mbrl.collector import CollectorConfig
from mbrl.data import load
from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.types import Dataset, Spec, Transitions
from tests.algorithms.continued import continued
from tests.conftest import random_dataset
from tests.small import CONFIGS

SPEC = Spec("made-up", 2, 1, None, (-1.0,), (1.0,))


def dataset(*rewards: list[float]) -> Dataset:
    """Three steps an episode, the first cut off and the others ended."""
    count = 3 * len(rewards)
    at = torch.arange(count)
    generator = torch.Generator().manual_seed(0)
    rows = Transitions(
        obs=torch.randn(count, 2, generator=generator),
        action=torch.rand(count, 1, generator=generator) * 2 - 1,
        reward=torch.tensor(rewards).flatten(),
        next_obs=torch.randn(count, 2, generator=generator),
        terminated=(at % 3 == 2) & (at > 2),
        truncated=at == 2,
    )
    return Dataset(rows, SPEC)


def trained(name: str, data: Dataset, steps: int, **values: Any) -> Any:
    agent = ALGORITHMS[name][0](SPEC, build_config(name, CONFIGS[name] | values), seed=0)
    return agent.fit(data, steps, callbacks=[])


@pytest.mark.parametrize("name", ["iql", "cql"])
def test_training_is_that_on_scaled_data(name: str) -> None:
    """Returns of 3, 8 and -2 lie 10 apart."""
    rewards = [1.0, 1.0, 1.0], [4.0, 4.0, 0.0], [0.0, -2.0, 0.0]
    scaled = dataset(*([100.0 * r for r in episode] for episode in rewards))
    data = dataset(*rewards)
    found = trained(name, data, 5, normalise_rewards=True)
    wanted = trained(name, scaled, 5)
    plain = trained(name, data, 5)
    for a, b in zip(found.modules.values(), wanted.modules.values(), strict=True):
        for key, value in a.state_dict().items():
            assert torch.equal(value, b.state_dict()[key])
    first = next(iter(found.modules["critic"].parameters()))
    assert not torch.equal(first, next(iter(plain.modules["critic"].parameters())))


def test_rows_that_are_stored_later_have_the_same_scale() -> None:
    """A generator's windows, for one, are in the task's units."""
    data = dataset([1.0, 1.0, 1.0], [4.0, 4.0, 0.0])
    values = CONFIGS["iql"] | {"normalise_rewards": True}
    agent = ALGORITHMS["iql"][0](SPEC, build_config("iql", values), seed=0)
    agent.prepare(data, lambda metrics: None)
    rows = agent.source.to_buffer(data.transitions).sample(50, torch.Generator().manual_seed(0))
    assert set(rows.reward.tolist()) == {200.0, 800.0, 0.0}


def test_returns_that_are_all_the_same_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"all 2 episodes.*return 3,.*normalise_rewards to False"):
        trained("iql", dataset([1.0, 1.0, 1.0], [3.0, 0.0, 0.0]), 1, normalise_rewards=True)


def test_corls_settings() -> None:
    """configs/offline/iql, cql and awac at commit 6afec90."""
    for task, level, normalised in (
        ("hopper", "medium", True),
        ("hopper", "medium-replay", True),
        ("hopper", "medium-expert", False),
        ("walker2d", "medium", False),
    ):
        name = f"d4rl/{task}-{level}-v2"
        iql, awac = preset_config("iql", name), preset_config("awac", name)
        assert iql.normalise_rewards == normalised and iql.normalise_obs
        assert iql.tau == (0.001 if normalised else 0.005)
        assert (iql.expectile, iql.temperature) == (
            (0.5, 6.0) if level == "medium-expert" else (0.7, 3.0)
        )
        assert awac.hidden == (256, 256, 256) and awac.normalise_obs
        cql = preset_config("cql", name)
        assert cql.normalise_rewards == (name == "d4rl/hopper-medium-v2")


def agent_in(name: str, logged: Dataset, **collection: Any) -> Any:
    agent = ALGORITHMS[name][0](logged.spec, build_config(name, CONFIGS[name]), seed=0)
    agent.fit(logged, 3, callbacks=[])
    agent.source.collection = replace(agent.source.collection, **collection)
    return agent


def of_log(agent: Any, logged: Dataset) -> torch.Tensor:
    """Which rows of a batch are logged ones, by their observations."""
    obs = agent.source.sample(torch.Generator().manual_seed(1)).obs
    return (obs[:, None] == logged.transitions.obs[None]).all(-1).any(1)


@pytest.mark.parametrize("name", ["iql", "td3_bc", "edac", "cql", "awac"])
@pytest.mark.parametrize("share", [0.0, 0.25, 0.5])
def test_a_batch_holds_the_share_of_logged_rows_exactly(name: str, share: float) -> None:
    logged = load("pendulum/medium")
    agent = agent_in(name, logged, logged_share=share)
    assert of_log(agent, logged).all()
    agent.learn("Pendulum-v1", 30, callbacks=[])
    marks = of_log(agent, logged)
    assert int(marks.sum()) == round(share * len(marks))
    assert len(agent.source.rows) == 30  # experience alone


@pytest.mark.parametrize(("capacity", "share"), [(99, None), (100, None), (10, 0.5)])
def test_logged_rows_that_are_forgotten_are_warned_of(
    capacity: int, share: float | None, recwarn: pytest.WarningsRecorder
) -> None:
    """Of the two million rows of a medium-expert log the default keeps the expert's alone."""
    data = random_dataset("Pendulum-v1", 100)
    agent = ALGORITHMS["iql"][0](data.spec, build_config("iql", CONFIGS["iql"]), seed=0)
    agent.prepare(data, lambda metrics: None)
    agent.source.collection = CollectorConfig(warmup=5, capacity=capacity, logged_share=share)
    agent.source.begin_experience()
    told = [str(w.message) for w in recwarn if "logged rows" in str(w.message)]
    assert len(told) == (capacity == 99) and all("the first 1 are forgotten" in t for t in told)


def test_the_frozen_policy_acts_before_the_first_update() -> None:
    logged = load("pendulum/medium")
    agent = agent_in("iql", logged, logged_share=0.0, frozen=300)
    before = [p.clone() for p in agent.policy.parameters()]
    agent.learn("Pendulum-v1", 300, callbacks=[])
    assert agent.updates == 3 and len(agent.source.rows) == 300
    for old, new in zip(before, agent.policy.parameters(), strict=True):
        assert torch.equal(old, new)
    again = agent_in("iql", logged, logged_share=0.0, frozen=300, updates_per_step=4)
    again.learn("Pendulum-v1", 305, callbacks=[])
    assert again.updates == 3 + 5 * 4


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_mixed_runs_go_on_bit_for_bit(share: float, tmp_path: Path) -> None:
    logged, task = load("pendulum/medium"), make("Pendulum-v1")
    agent = agent_in("iql", logged, logged_share=share, frozen=5)
    again = continued(agent, task, tmp_path / "agent.pt", agent.step + 30, agent.step + 60)
    assert int(of_log(again, logged).sum()) == round(share * again.config.batch_size)


def test_a_share_of_what_is_not_there_is_refused() -> None:
    logged = load("pendulum/medium")
    agent = agent_in("mopo", logged)
    with pytest.raises(ConfigError, match="MOPO does not draw its batches from logged rows and"):
        agent.learn("Pendulum-v1", 1, collection=RefitConfig(logged_share=0.5))
    fresh = ALGORITHMS["iql"][0](logged.spec, build_config("iql", CONFIGS["iql"]), seed=0)
    with pytest.raises(ConfigError, match="IQL has no logged rows"):
        fresh.learn("Pendulum-v1", 1, collection=CollectorConfig(logged_share=0.5))
    with pytest.raises(ConfigError, match="logged_share"):
        CollectorConfig(logged_share=1.5)
