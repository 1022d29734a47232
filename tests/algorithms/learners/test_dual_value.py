"""The Gumbel loss in closed form, and an update of the shared learner against a loop."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from algorithms import FDVL
from algorithms.learners.advantage_weighted import cosine_rate
from algorithms.learners.dual_value import gumbel_loss
from experiments.settings import build_config
from mbrl.buffer import Batch
from mbrl.types import Spec

D = torch.float64
SPEC = Spec("small", 3, 2, None, (-1.0, -1.0), (1.0, 1.0), 10)


@pytest.mark.parametrize("beta", [0.5, 2.0])
def test_gumbel_is_stationary_at_a_soft_maximum(beta: float) -> None:
    """Where V = beta log mean exp(q / beta); the gradient is that of exp(z) - z - 1 times exp(-m),
    so it has the signs of a minimum on both sides."""
    q = torch.tensor([0.0, 0.3, -1.0, 0.9], dtype=D)
    at = beta * math.log(np.exp(q.numpy() / beta).mean())
    slopes = []
    for shift in (-0.1, 0.0, 0.1):
        v = torch.tensor(at + shift, dtype=D, requires_grad=True)
        gumbel_loss(q - v, beta, None).backward()
        assert v.grad is not None
        slopes.append(float(v.grad))
    assert slopes[0] < -1e-3 and slopes[1] == pytest.approx(0, abs=1e-9) and slopes[2] > 1e-3


def test_gumbel_against_a_loop_and_without_overflow() -> None:
    u, beta, bound = torch.tensor([-3.0, 0.5, 4.0], dtype=D), 0.5, 6.0
    z = [min(float(x) / beta, bound) for x in u]
    largest = max(*z, -1.0)
    expected = np.mean([(math.exp(x) - x - 1) / math.exp(largest) for x in z])
    assert float(gumbel_loss(u, beta, bound)) == pytest.approx(expected)
    low = torch.tensor([-8.0, -9.0], dtype=D)
    expected = np.mean([(math.exp(x) - x - 1) * math.e for x in (-8, -9)])
    assert float(gumbel_loss(low, 1.0, None)) == pytest.approx(expected)
    assert torch.isfinite(gumbel_loss(torch.tensor([0.0, 1000.0]), 1.0, None))


@pytest.mark.parametrize("bound", [None, 2.0])
def test_others_change_the_scale_of_the_gumbel_loss_alone(bound: float | None) -> None:
    """Loss and gradient are those without them times exp(m - m'), m' their largest z with the bound
    on it; smaller ones change nothing."""
    u = torch.tensor([-3.0, 0.5, 0.7], dtype=D, requires_grad=True)
    alone = gumbel_loss(u, 0.5, bound)
    (slope,) = torch.autograd.grad(alone, u)
    for top in (0.1, 1.9):
        loss = gumbel_loss(u, 0.5, bound, torch.tensor([-5.0, top], dtype=D))
        (got,) = torch.autograd.grad(loss, u)
        z = min(max(top / 0.5, 1.4), math.inf if bound is None else bound)
        assert float(loss.detach()) == pytest.approx(float(alone.detach()) * math.exp(1.4 - z))
        assert torch.allclose(got, slope * math.exp(1.4 - z))
    low = torch.tensor([-3.0, -2.0], dtype=D)  # at least -1, then what the others have
    expected = np.mean([(math.exp(x) - x - 1) * math.exp(0.5) for x in (-3, -2)])
    assert float(gumbel_loss(low, 1.0, bound, low[:1] + 2.5)) == pytest.approx(expected)


def test_cosine_rate() -> None:
    assert cosine_rate(0.4, 0, 999) == 0.4
    assert cosine_rate(0.4, 100, 50) == pytest.approx(0.2)
    assert cosine_rate(0.4, 100, 25) == pytest.approx(0.2 * (1 + math.sqrt(0.5)))
    assert cosine_rate(0.4, 100, 300) == pytest.approx(0.0)


def made(**values: Any) -> Any:
    config = build_config("f_dvl", {"hidden": [8], "gamma": 0.9} | values)
    learner = FDVL(SPEC, config, seed=0).learner
    generator = torch.Generator().manual_seed(1)
    for module in learner.modules.values():
        module.double()
    with torch.no_grad():
        for p in learner.critic_target.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=D))
    return learner


def rows(count: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(2)
    obs, next_obs = torch.randn(2, count, 3, generator=generator, dtype=D)
    action = 2 * torch.rand(count, 2, generator=generator, dtype=D) - 1
    reward = torch.randn(count, generator=generator, dtype=D)
    discount = torch.full((count,), 0.9, dtype=D)
    discount[1] = 0.0
    noise = torch.randn(1, count, 2, generator=generator, dtype=D)
    return Batch(obs, action, reward, next_obs, discount, noise)


def test_update_against_a_loop() -> None:
    """Value at logged and uniform actions with the value before the step; policy and critics with
    the value after it."""
    learner, batch = made(alpha=0.7, huber=0.5, uniform_actions=True, temperature=2.0), rows()
    before = [float(learner.value(batch.obs[i : i + 1]).detach()) for i in range(5)]
    uniform = 2 * stats.norm.cdf(batch.noise[0].numpy()) - 1  # type: ignore[index]
    least, terms = [], []
    for k in range(10):
        i = k % 5
        action = batch.action[i] if k < 5 else torch.tensor(uniform[i])
        x = torch.cat([batch.obs[i], action])[None]
        least.append(min(float(learner.critic_target.member(x, n).detach()) for n in range(2)))
        u = least[-1] - before[i]
        terms.append(0.7 * max(u, 0) - 0.3 * u)
    log_prob = learner.policy.log_prob(batch.obs, batch.action).tolist()
    q = [
        [
            float(learner.critic.member(torch.cat([batch.obs[i], batch.action[i]])[None], n))
            for i in range(5)
        ]
        for n in range(2)
    ]
    metrics = learner.update(batch)
    after = [float(learner.value(batch.obs[i : i + 1]).detach()) for i in range(5)]
    following = [float(learner.value(batch.next_obs[i : i + 1]).detach()) for i in range(5)]
    assert after != before
    assert float(metrics["value/loss"]) == pytest.approx(np.mean(terms))
    policy = [-min(math.exp(2 * (least[i] - after[i])), 100) * log_prob[i] for i in range(5)]
    assert float(metrics["actor/loss"]) == pytest.approx(np.mean(policy), rel=1e-6)
    errors = []
    for n in range(2):
        for i in range(5):
            error = abs(q[n][i] - float(batch.reward[i]) - float(batch.discount[i]) * following[i])
            errors.append(0.5 * error**2 if error < 0.5 else 0.5 * (error - 0.25))
    assert float(metrics["critic/loss"]) == pytest.approx(2 * np.mean(errors), rel=1e-6)
