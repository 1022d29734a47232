"""What learners of goals share, against loops written from OGBench's reference code, and closed
forms of values on a chain."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize

from algorithms.learners.goal_conditioned import (
    GoalPolicy,
    GoalValueConfig,
    GoalValues,
    climbing_policy_loss,
    descend_together,
    expectile_values,
    learned_parameters,
    normalised,
    weighted_policy_loss,
)
from mbrl.buffer import Batch
from mbrl.networks import adam
from mbrl.types import Spec

D = torch.float64
SPEC = Spec("line", 4, 2, None, (-1.0,) * 2, (1.0,) * 2, 10, goal=(3,), achieved=(0,))


def batch_of(reward: torch.Tensor, discount: torch.Tensor) -> Batch:
    none = torch.zeros(len(reward), 1, dtype=D)
    return Batch(none, none, reward, none, discount)


def authors_value_loss(v: Any, vt: Any, nvt: Any, r: Any, discount: Any, tau: float) -> float:
    """GCIVLAgent.value_loss, row by row; discount times mask is one number here."""
    total = 0.0
    for b in range(len(r)):
        adv = r[b] + discount[b] * min(nvt[0][b], nvt[1][b]) - (vt[0][b] + vt[1][b]) / 2
        weight = tau if adv >= 0 else 1 - tau
        for n in range(2):
            total += weight * (r[b] + discount[b] * nvt[n][b] - v[n][b]) ** 2 / len(r)
    return total


def test_value_loss_against_the_authors() -> None:
    generator = torch.Generator().manual_seed(0)
    v, vt, nvt = 3 * torch.randn(3, 2, 40, generator=generator, dtype=D)
    here = torch.rand(40, generator=generator) < 0.3
    r, discount = -(~here).double(), 0.9 * (~here).double()
    got = expectile_values(v, vt, nvt, batch_of(r, discount), 0.8)
    expected = authors_value_loss(*(x.numpy() for x in (v, vt, nvt, r, discount)), 0.8)
    assert float(got) == pytest.approx(expected, rel=1e-6)  # 0.8 is a float32
    with pytest.raises(ValueError, match="shapes do not fit together"):
        expectile_values(v, vt, nvt[:, :-1], batch_of(r, discount), 0.8)


def test_values_of_a_chain() -> None:
    """n steps from the goal V = -(1 - gamma^n) / (1 - gamma), where each step goes one on; with
    rows that stay where they are too, the expectile lies between the two, above the mean."""
    gamma, n = 0.9, 12
    closed = [-(1 - gamma**k) / (1 - gamma) for k in range(n)]

    def fitted(stays: bool, tau: float) -> list[float]:
        v = torch.zeros(n, dtype=D)
        state = torch.arange(n).repeat(2 if stays else 1)
        following = torch.cat([(torch.arange(n) - 1).clamp(min=0), torch.arange(n)])[: len(state)]
        r, discount = -(state > 0).double(), gamma * (state > 0).double()
        for _ in range(150):

            def loss(x: np.ndarray, v: torch.Tensor = v) -> tuple[float, np.ndarray]:
                free = torch.tensor(x, dtype=D, requires_grad=True)
                pair = [y.expand(2, -1) for y in (free[state], v[state], v[following])]
                value = expectile_values(*pair, batch_of(r, discount), tau)
                return float(value.detach()), torch.autograd.grad(value, free)[0].numpy()

            v = torch.tensor(optimize.minimize(loss, v.numpy(), jac=True, tol=1e-12).x, dtype=D)
        return v.tolist()

    assert fitted(False, 0.7) == pytest.approx(closed, abs=1e-5)
    mixed = fitted(True, 0.9)
    half = [0.0]
    for _ in range(n - 1):  # V = -1 + gamma (V + V_before) / 2
        half.append((-1 + 0.45 * half[-1]) / 0.55)
    assert all(h < m < c for h, m, c in zip(half[1:], mixed[1:], closed[1:], strict=True))


def test_policy_losses_against_the_authors() -> None:
    generator = torch.Generator().manual_seed(1)
    advantage = 3 * torch.randn(30, generator=generator, dtype=D)
    log_prob = -torch.rand(30, generator=generator, dtype=D).requires_grad_()
    loss, metrics = weighted_policy_loss(log_prob, advantage, 2.0)
    weights = [min(math.exp(2 * a), 100.0) for a in advantage.tolist()]
    expected = -sum(w * p for w, p in zip(weights, log_prob.tolist(), strict=True)) / 30
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-12)
    assert 100.0 in weights and float(metrics["actor/weight"]) == pytest.approx(np.mean(weights))

    q = (torch.randn(30, generator=generator, dtype=D) - 4).requires_grad_()
    loss, _ = climbing_policy_loss(q, log_prob, 0.3)
    scale = sum(abs(x) for x in q.tolist()) / 30 + 1e-6
    expected = -(sum(q.tolist()) / 30) / scale - 0.3 * sum(log_prob.tolist()) / 30
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-12)
    gradient = torch.autograd.grad(loss, q)[0]
    assert torch.allclose(gradient, torch.full_like(gradient, -1 / 30 / scale))  # not of the scale


def test_policies_have_deviation_one_and_do_not_learn_it() -> None:
    policy = GoalPolicy(SPEC, (8,), generator=torch.Generator().manual_seed(0))
    obs, action = torch.randn(5, 4), torch.rand(5, 2)
    expected = -0.5 * (action - policy.unit(obs)).square().sum(-1) - math.log(2 * math.pi)
    assert torch.allclose(policy.log_prob(obs, action), expected, atol=1e-6)
    assert len(learned_parameters(policy)) == len(list(policy.parameters())) - 1


def test_each_loss_moves_its_own_network_alone() -> None:
    """A loss through two networks, as DDPG+BC's through the critics, and gradients of before."""
    one, two = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    optimisers = {"one": torch.optim.SGD(one.parameters(), 1.0), "two": adam(two.parameters(), 0.1)}
    before = two.weight.detach().clone()
    x = torch.ones(1, 1)
    through = two(one(x)).sum()
    gradient = torch.autograd.grad(through, one.weight, retain_graph=True)[0]
    start = one.weight.detach().clone()
    descend_together(optimisers, {"two": 0 * two(x).sum(), "one": through})
    assert torch.allclose(one.weight, start - gradient)
    assert torch.equal(two.weight, before)


@pytest.mark.parametrize("size", [0, 3])
def test_values_their_goals_and_their_representation(size: int) -> None:
    config = GoalValueConfig(hidden=(8,))
    value = GoalValues(SPEC, config, torch.Generator().manual_seed(0), size).double()
    generator = torch.Generator().manual_seed(2)
    obs, next_obs = torch.randn(2, 60, 4, generator=generator, dtype=D)
    goal = torch.randn(60, 1, generator=generator, dtype=D)
    with torch.no_grad():  # targets of their own
        for p in value.targets.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=D))

    def nets(module: Any, rows: torch.Tensor) -> torch.Tensor:
        seen = rows
        if size:
            raw = value.represent.net(rows)
            phi = raw / raw.square().sum(-1, keepdim=True).sqrt() * math.sqrt(size)
            seen = torch.cat([rows[:, [0, 1, 2]], phi], -1)
        return module(seen)[..., 0]

    placed = obs.clone()
    placed[:, 3] = goal[:, 0]
    assert torch.allclose(value.mean(obs, goal), nets(value.values, placed).mean(0))
    later = next_obs.clone()
    later[:, 3] = goal[:, 0]
    gain = nets(value.values, later).mean(0) - nets(value.values, placed).mean(0)
    assert torch.allclose(value.advantage(next_obs, obs, goal), gain)
    reward, discount = torch.tensor([-1.0] * 50 + [0.0] * 10), torch.tensor([0.9] * 50 + [0.0] * 10)
    batch = Batch(obs, obs, reward.double(), next_obs, discount.double())
    loss, _ = value.loss(batch, 0.8)
    arrays = [nets(m, x).detach().numpy() for m, x in
              ((value.values, obs), (value.targets, obs), (value.targets, next_obs))]  # fmt: skip
    expected = authors_value_loss(*arrays, reward.tolist(), discount.tolist(), 0.8)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-6)
    learned = torch.autograd.grad(loss, learned_parameters(value), allow_unused=True)
    assert all(g is not None for g in learned)
    if size:
        assert normalised(torch.randn(4, size)).square().sum(-1).tolist() == pytest.approx(
            [size] * 4
        )
