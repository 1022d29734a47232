"""CQL against an independent loop and known answers."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from algorithms import ALGORITHMS
from algorithms.cql import bounded_multiplier, conservative_gap, multiplier_loss, sample_actions
from algorithms.learners.soft_actor_critic import soft_value_target
from experiments.settings import build_config
from mbrl.types import Dataset, Spec, Transitions
from tests.algorithms.reference_values import slow_soft_maximum, slow_value

D = torch.float64


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def prepared(name: str, data: Dataset, **values: Any) -> Any:
    agent = ALGORITHMS[name][0](data.spec, build_config(name, values), seed=0)
    agent.prepare(data, lambda metrics: None)
    return agent


def trained(name: str, data: Dataset, steps: int, **values: Any) -> Any:
    agent = prepared(name, data, **values)
    return agent.fit(data, steps, callbacks=[])


def test_conservative_gap_against_a_loop() -> None:
    q, density, data_q = randn(2, 6, 5), randn(6, 5, seed=1), randn(2, 5, seed=2)
    for temperature in (1.0, 0.3):
        for n in range(2):
            total = 0.0
            for b in range(5):
                terms = [
                    math.exp(float(q[n, k, b] - density[k, b]) / temperature) for k in range(6)
                ]
                total += temperature * math.log(sum(terms)) - float(data_q[n, b])
            got = conservative_gap(q, density, data_q, temperature)
            assert float(got[n]) == pytest.approx(total / 5)


def test_importance_sampling_estimates_the_integral() -> None:
    """Uniform and Gaussian proposals together: log of the integral of exp Q, plus log K."""
    rng, count = np.random.default_rng(0), 200_000
    proposals = [stats.uniform(-1, 2), stats.truncnorm(-2, 2, 0.2, 0.4)]
    a = np.stack([p.rvs(count, random_state=rng) for p in proposals])
    density = np.stack([p.logpdf(x) for p, x in zip(proposals, a, strict=True)])

    def value(x: Any) -> Any:
        return np.where(np.abs(x - 0.2) < 0.8, 2 * np.cos(3 * x), -np.inf)  # where both reach

    q, log_density = torch.tensor(value(a)).flatten(), torch.tensor(density).flatten()
    got = conservative_gap(q[None, :, None], log_density[:, None], torch.zeros(1, 1, dtype=D), 1.0)
    expected = integrate.quad(lambda x: math.exp(2 * math.cos(3 * x)), -0.6, 1.0)[0]
    assert float(got) - math.log(2 * count) == pytest.approx(math.log(expected), abs=0.01)


def test_cql_step_against_an_independent_loop(pendulum: Dataset) -> None:
    """Sampled actions, densities, the soft maximum over all 3M of them and the Bellman error, one
    state and critic at a time. (A known reference code reduces over the three kinds of actions
    instead of the 3M actions.)"""
    learner = {"hidden": [16, 16], "batch_size": 8, "critics": 2}
    agent = prepared("cql", pendulum, learner=learner, samples=4, weight=5.0)
    batch = agent.next_batch()
    learner, gaps = agent.learner, []
    target = soft_value_target(learner, batch)
    for n in range(2):
        for b in range(8):
            logged = slow_value(learner.critic, n, batch.obs[b], batch.action[b])
            gaps.append(slow_soft_maximum(learner, batch, n, b, 4) - logged)
    metrics = learner.update_critic(batch, target)
    assert float(metrics["critic/gap"]) == pytest.approx(np.mean(gaps), rel=1e-4)


def test_cql_uniform_actions_are_uniform(pendulum: Dataset) -> None:
    agent = prepared("cql", pendulum, learner={"hidden": [8], "batch_size": 1000}, samples=2)
    batch = agent.next_batch()
    actions, density = sample_actions(agent.policy, batch.obs, batch.next_obs, batch.noise[2:])
    uniform = actions[:2].flatten().numpy()
    assert stats.kstest(uniform, stats.uniform(-1, 2).cdf).pvalue > 0.01
    assert torch.allclose(density[:2], torch.tensor(math.log(0.5)))


def test_cql_multiplier_moves_with_the_gap() -> None:
    log_multiplier = torch.tensor(0.5, requires_grad=True)
    gap = torch.tensor([3.0, 5.0])
    loss = multiplier_loss(log_multiplier, gap, 1.0)
    assert float(loss.detach()) == pytest.approx(-math.exp(0.5) * 3.0)
    loss.backward()
    assert float(log_multiplier.grad) < 0  # descent raises it: the gap is above the threshold
    assert float(bounded_multiplier(torch.tensor(20.0))) == 1e6


def slope(rows: int = 400) -> Dataset:
    """One state, one step, reward equal to the action; logged actions lie around -0.5."""
    generator = torch.Generator().manual_seed(0)
    spec = Spec("slope", 2, 1, None, (-1.0,), (1.0,), 1)
    action = (-0.5 + 0.15 * torch.randn(rows, 1, generator=generator)).clamp(-1, 1)
    flags = torch.ones(rows, dtype=torch.bool)
    obs = torch.zeros(rows, 2)
    return Dataset(Transitions(obs, action, action[:, 0], obs, flags, ~flags), spec)


def test_cql_bounds_the_value_from_below() -> None:
    """Unseen actions and the policy's own are valued below the truth; without the term they are
    not."""
    data = slope()
    learner = {"hidden": [32], "batch_size": 64, "actor_lr": 3e-3, "critic_lr": 3e-3}
    unseen = torch.linspace(0.2, 1.0, 20)[:, None]
    x = torch.cat([torch.zeros(20, 2), unseen], 1)
    below = {}
    for weight in (0.0, 1.0):
        agent = trained("cql", data, 300, learner=learner, weight=weight)
        with torch.no_grad():
            error = agent.learner.critic(x)[..., 0] - unseen[:, 0]
            sampled, _ = agent.policy.sample(torch.zeros(500, 2), randn(500, 1).float())
            own = agent.learner.critic(torch.cat([torch.zeros(500, 2), sampled], 1))[..., 0]
        below[weight] = float(error.max()), float((own - sampled[:, 0]).mean())
    assert below[1.0][0] < -0.2 and below[1.0][1] < 0
    assert below[0.0][0] > -0.1
