"""COMBO against an independent loop, and the traps of known reference codes."""

from typing import Any

import numpy as np
import pytest
import torch

from algorithms import ALGORITHMS
from algorithms.combo import conservative_gap
from algorithms.learners.soft_actor_critic import soft_value_target
from experiments.settings import build_config, merge
from mbrl.errors import ConfigError
from mbrl.types import Dataset
from tests.algorithms.reference_values import slow_soft_maximum, slow_value
from tests.small import CONFIGS

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


@pytest.mark.parametrize("states", ["mixture", "model"])
def test_combo_gap_against_an_independent_loop(states: str, pendulum: Dataset) -> None:
    """The soft maximum runs over all 3M actions of a state (a known reference code reduces over
    the three kinds instead); logged values are of real rows alone."""
    learner = {"hidden": [16, 16], "batch_size": 8, "critics": 2}
    values = {"learner": learner, "samples": 4, "states": states}
    agent = prepared("combo", pendulum, **values, imagination={"real_ratio": 0.5})
    agent.advance()
    batch = agent.next_batch()
    critic = agent.learner.critic

    expected = []
    for n in range(2):
        rows = range(4 if states == "model" else 0, 8)
        soft = [slow_soft_maximum(agent.learner, batch, n, b, 4) for b in rows]
        logged = [slow_value(critic, n, batch.obs[b], batch.action[b]) for b in range(4)]
        expected.append(np.mean(soft) - np.mean(logged))
    learner = agent.learner
    metrics = learner.update_critic(batch, soft_value_target(learner, batch))
    assert float(metrics["critic/gap"]) == pytest.approx(np.mean(expected), rel=1e-4)


def test_combo_pushes_sampled_values_down_and_logged_ones_up(pendulum: Dataset) -> None:
    """Both terms have their gradient: shifting all values changes nothing, and the gradient at the
    imagined rows is not zero. (A known reference code stops the gradient of the sampled term.)"""
    agent = prepared("combo", pendulum)
    agent.advance()
    batch = agent.next_batch()
    critic = agent.learner.critic
    x = torch.cat([batch.obs, batch.action], -1)
    gap = conservative_gap(agent.learner, batch, critic(x)[..., 0], agent.config)
    last_bias = torch.autograd.grad(gap.sum(), critic.biases[-1], retain_graph=True)[0]
    assert last_bias.abs().max() < 1e-5  # +1 of the sampled term, -1 of the logged one
    real = int(len(x) * 0.5)
    only_logged = -critic(x)[:, :real, 0].mean(1)
    whole = torch.autograd.grad(gap.sum(), critic.weights[0])[0]
    logged = torch.autograd.grad(only_logged.sum(), critic.weights[0])[0]
    assert not torch.allclose(whole, logged, rtol=0.1, atol=1e-4)


def test_combo_backup_and_wrong_ratios(pendulum: Dataset) -> None:
    for entropy in (False, True):
        agent = prepared("combo", pendulum, learner={"entropy_in_target": entropy})
        agent.advance()
        batch = agent.next_batch()
        action, log_prob = agent.learner.actor.sample(batch.next_obs, batch.noise[1])
        q = agent.learner.target(torch.cat([batch.next_obs, action], -1))[..., 0].min(0).values
        bonus = agent.learner.log_alpha.exp() * log_prob if entropy else 0.0
        expected = batch.reward + batch.discount * (q - bonus)
        assert torch.allclose(soft_value_target(agent.learner, batch), expected, atol=1e-5)
    for ratio, states in ((0.001, "mixture"), (1.0, "model")):
        with pytest.raises(ConfigError, match=f"real_ratio is {ratio}"):
            build_config("combo", {"imagination": {"real_ratio": ratio}, "states": states})
