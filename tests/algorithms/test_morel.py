"""MOReL against loops over rows and pairs of members."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from algorithms import ALGORITHMS
from algorithms.morel import MEASURE, halt_threshold
from experiments.settings import build_config, merge
from mbrl.errors import ConfigError
from mbrl.types import Dataset
from tests.small import CONFIGS
from world_models import RolloutConfig
from world_models.rollout import HaltingRollout

D = torch.float64


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def agent_of(name: str, data: Dataset, **values: Any) -> Any:
    config = build_config(name, merge(CONFIGS[name], values))
    return ALGORITHMS[name][0](data.spec, config, seed=0)


def prepared(name: str, data: Dataset, **values: Any) -> Any:
    agent = agent_of(name, data, **values)
    agent.prepare(data, lambda metrics: None)
    return agent


@pytest.mark.parametrize(
    ("rule", "value", "expected"),
    [
        ("mean_std", 2.0, lambda x: x.mean() + 2 * x.std()),
        ("quantile", 0.9, lambda x: np.quantile(x, 0.9, method="higher")),
        ("quantile", 1.0, lambda x: x.max()),
        ("maximum", 1.5, lambda x: 1.5 * x.max()),
    ],
)
def test_halt_threshold(rule: Any, value: float, expected: Any) -> None:
    level = randn(151).abs()
    got = halt_threshold(level, rule, value)
    assert float(got) == pytest.approx(float(expected(level.numpy())))


def test_morel_threshold_is_of_the_data_and_halt_is_recorded(pendulum: Dataset) -> None:
    """The threshold by a loop over rows and pairs of members at the same input; every imagined row
    above it ends with the halt reward, every other one is the model's."""
    agent = prepared("morel", pendulum, threshold=0.5, halt_offset=-7.0)
    data, model = pendulum.transitions, agent.model
    mean, _ = model.members_predict(data.obs, data.action)
    levels = []
    for row in mean.transpose(0, 1).double().numpy():
        levels.append(max(np.linalg.norm(a - b) for a in row for b in row))
    threshold, reward = agent.source.halt.tolist()
    assert threshold == pytest.approx(np.mean(levels) + 0.5 * np.std(levels), rel=1e-4)
    assert reward == pytest.approx(float(data.reward.min()) - 7.0)
    agent.source.imagine(0, agent.generator)
    imagined = agent.source.imagined
    rows = imagined.batch(imagined.rows[: len(imagined)])
    action = agent.policy.scale.to_task(rows.action)
    halted = model.disagreement(rows.obs, action, MEASURE) > threshold
    assert 0 < int(halted.sum()) < len(halted)
    assert torch.equal(rows.reward == agent.source.halt[1], halted)
    assert torch.equal(rows.halted == 1, halted)
    assert (rows.discount[halted] == 0).all() and (rows.discount[~halted] > 0).all()


def test_morel_compares_members_at_one_input_only(pendulum: Dataset) -> None:
    """Members that agree everywhere never halt, however far apart the data's predictions lie. (A
    known reference code compares across inputs too.)"""
    agent = prepared("morel", pendulum, threshold_rule="maximum")
    with torch.no_grad():
        for p in agent.model.network.mlp.parameters():
            p.copy_(p[:1].expand_as(p))
    agent.source.halt = None
    agent.prepare(pendulum, lambda metrics: None)
    assert float(agent.source.halt[0]) == pytest.approx(0.0, abs=1e-4)
    mean, _ = agent.model.members_predict(pendulum.transitions.obs, pendulum.transitions.action)
    assert float((mean[0] - mean[0, 0]).norm(dim=-1).max()) > 0.1


def test_morel_halt_for_ever_is_below_every_return(pendulum: Dataset) -> None:
    """Where all rewards are negative, a HALT that pays once would be worth more than going on."""
    once = prepared("morel", pendulum, halt_offset=0.0)
    ever = prepared("morel", pendulum, halt_offset=0.0, halt_forever=True)
    assert float(ever.source.halt[1]) == pytest.approx(float(once.source.halt[1]) / 0.01, rel=1e-5)
    worst = float(pendulum.transitions.reward.min()) / (1 - 0.99)
    assert float(ever.source.halt[1]) <= worst + 1e-3 < float(once.source.halt[1])


def test_morel_halt_is_no_prize_where_every_step_is_paid(pendulum: Dataset) -> None:
    """An end pays nothing from there on, so that a least reward of 1 for ever would be the most."""
    paid = replace(pendulum.transitions, reward=torch.ones_like(pendulum.transitions.reward))
    data = replace(pendulum, transitions=paid)
    ever = prepared("morel", data, halt_offset=0.0, halt_forever=True)
    assert float(ever.source.halt[1]) == 0.0


def test_morel_keeps_its_threshold(pendulum: Dataset, tmp_path) -> None:
    agent = agent_of("morel", pendulum).fit(pendulum, 3, callbacks=[])
    agent.save(tmp_path / "a.pt")
    again = type(agent).load(tmp_path / "a.pt")
    assert torch.equal(agent.source.halt, again.source.halt)
    with pytest.raises(ConfigError, match="it must lie in"):
        replace(agent.config, threshold_rule="quantile", threshold=2.0)
    stopping = RolloutConfig(stop=MEASURE, stop_above=1.0)
    with pytest.raises(ConfigError, match="stops rollouts by its own rule"):
        replace(agent.config, imagination=replace(agent.config.imagination, rollout=stopping))
    with pytest.raises(ConfigError, match="name the measure"):
        HaltingRollout(halt_reward=-1.0)
