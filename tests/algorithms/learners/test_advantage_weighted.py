"""AWAC and CRR: advantages and weights against loops."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special

from algorithms import ALGORITHMS
from algorithms.awac import softmax_weight
from algorithms.crr import binary_weight
from algorithms.learners.advantage_weighted import advantages, exponential_weight, weighted_cloning
from experiments.settings import build_config
from mbrl.types import Dataset

D = torch.float64


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def prepared(name: str, data: Dataset, **values: Any) -> Any:
    agent = ALGORITHMS[name][0](data.spec, build_config(name, values), seed=0)
    agent.prepare(data, lambda metrics: None)
    return agent


def test_advantages_against_a_loop() -> None:
    q, sampled = randn(2, 5), randn(2, 3, 5, seed=1)
    for baseline, reduce in (("mean", np.mean), ("max", np.max)):
        got = advantages(q, sampled, baseline)  # type: ignore[arg-type]
        for b in range(5):
            values = [min(float(sampled[n, k, b]) for n in range(2)) for k in range(3)]
            expected = min(float(q[0, b]), float(q[1, b])) - reduce(values)
            assert float(got[b]) == pytest.approx(expected)


def test_agents_advantages_against_a_loop(pendulum: Dataset) -> None:
    agent = prepared("crr", pendulum, hidden=[16], batch_size=6, critics=2, samples=3)
    batch = agent.next_batch()
    got = agent.learner.advantage(batch)
    for b in range(6):
        with torch.no_grad():
            mean, std = agent.policy.unit(batch.obs[b]), agent.policy.log_std.exp()
            actions = [batch.action[b]]
            actions += [(mean + std * batch.noise[1 + k, b]).clamp(-1, 1) for k in range(3)]
            inputs = [torch.cat([batch.obs[b], a])[None] for a in actions]
            q = [min(float(agent.learner.critic.member(x, n)) for n in range(2)) for x in inputs]
        assert float(got[b]) == pytest.approx(q[0] - np.mean(q[1:]), abs=1e-5)


def test_advantage_weights() -> None:
    advantage = torch.tensor([-1.0, 0.0, 0.5, 9.0], dtype=D)
    expected = 4 * special.softmax(advantage.numpy() / 0.7)
    assert softmax_weight(advantage, 0.7).tolist() == pytest.approx(expected.tolist())
    assert float(softmax_weight(advantage, 0.7).mean()) == pytest.approx(1.0)
    assert binary_weight(advantage).tolist() == [0, 0, 1, 1]
    got = exponential_weight(advantage, 1 / 2.0, 20.0).tolist()
    assert got == pytest.approx([math.exp(-0.5), 1.0, math.exp(0.25), 20.0])
    log_prob = torch.tensor([-1.0, -2.0], requires_grad=True)
    weight = torch.tensor([3.0, 0.5], requires_grad=True)
    loss, _ = weighted_cloning(log_prob, weight)
    assert float(loss.detach()) == pytest.approx((3.0 + 1.0) / 2)
    loss.backward()
    assert log_prob.grad.tolist() == [-1.5, -0.25] and weight.grad is None
