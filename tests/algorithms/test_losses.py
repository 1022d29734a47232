"""Losses against slow loops and literal numbers written from the papers' formulas."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from algorithms.edac import diversity_loss
from algorithms.iql import expectile_loss, policy_loss
from algorithms.learners.soft_actor_critic import (
    actor_loss,
    critic_loss,
    soft_target,
    temperature_loss,
)
from algorithms.learners.td3 import td3_target
from algorithms.td3_bc import actor_loss as td3_actor_loss
from mbrl.networks import SquashedGaussianPolicy
from mbrl.types import Spec

D = torch.float64


def test_soft_target_by_hand() -> None:
    reward = torch.tensor([1.0, -2.0], dtype=D)
    discount = torch.tensor([0.9, 0.0], dtype=D)
    q = torch.tensor([[3.0, 5.0], [4.0, 1.0]], dtype=D)
    log_prob = torch.tensor([-1.0, 2.0], dtype=D)
    got = soft_target(reward, discount, q, log_prob, torch.tensor(0.5, dtype=D))
    assert got.tolist() == pytest.approx([1 + 0.9 * (3.0 + 0.5), -2.0])
    without = soft_target(reward, discount, q, None, torch.tensor(0.5, dtype=D))
    assert without.tolist() == pytest.approx([1 + 0.9 * 3.0, -2.0])


def test_negative_rewards_are_not_clamped() -> None:
    """A known reference code clamps targets at 0 from below, which breaks tasks such as
    Pendulum."""
    q = torch.full((2, 3), -50.0)
    got = soft_target(torch.full((3,), -5.0), torch.full((3,), 0.99), q, None, torch.tensor(0.0))
    assert got.tolist() == pytest.approx([-5.0 - 0.99 * 50.0] * 3)


def test_diversity_against_all_pairs() -> None:
    g = torch.randn(5, 7, 3, dtype=D, generator=torch.Generator().manual_seed(0))
    total = 0.0
    for b in range(7):
        for i in range(5):
            for j in range(5):
                if i != j:
                    a, c = g[i, b].numpy(), g[j, b].numpy()
                    total += a @ c / (np.linalg.norm(a) * np.linalg.norm(c))
    assert float(diversity_loss(g)) == pytest.approx(total / 7 / 4, abs=1e-8)


@pytest.mark.parametrize("huber", [None, 1.0])
def test_critic_loss_against_a_loop(huber: float | None) -> None:
    generator = torch.Generator().manual_seed(1)
    q = 3 * torch.randn(4, 6, dtype=D, generator=generator)
    target = torch.randn(6, dtype=D, generator=generator)
    expected = 0.0
    for n in range(4):
        row = 0.0
        for b in range(6):
            e = abs(float(q[n, b] - target[b]))
            row += e * e if huber is None else (0.5 * e * e if e <= 1.0 else e - 0.5)
        expected += row / 6
    loss, metrics = critic_loss(q, target, huber)
    assert float(loss) == pytest.approx(expected)
    assert float(metrics["critic/loss"]) == pytest.approx(expected)
    gaps = q.mean(0) - q.min(0).values
    assert float(metrics["critic/penalty"]) == pytest.approx(float(gaps.mean()))


def test_actor_and_temperature_losses_by_hand() -> None:
    log_prob, value = torch.tensor([-1.0, 1.0]), torch.tensor([2.0, 4.0])
    loss, metrics = actor_loss(log_prob, value, torch.tensor(0.5))
    assert float(loss) == pytest.approx(-3.0)
    assert float(metrics["actor/entropy"]) == pytest.approx(0.0)
    log_alpha = torch.tensor(0.3, requires_grad=True)
    got = temperature_loss(log_alpha, log_prob - 4.0, target_entropy=-2.0)
    assert float(got.detach()) == pytest.approx(-0.3 * (-4.0 - 2.0))
    got.backward()
    # entropy 4 is above the target -2, so descending the loss lowers the temperature
    assert float(log_alpha.grad) == pytest.approx(6.0)


def test_td3_bc_by_hand() -> None:
    q = torch.tensor([2.0, -4.0])
    action, logged = torch.tensor([[0.5], [0.0]]), torch.tensor([[0.0], [1.0]])
    loss, _ = td3_actor_loss(q, action, logged, alpha=2.5)
    assert float(loss) == pytest.approx(-(2.5 / 3.0) * -1.0 + (0.25 + 1.0) / 2)
    next_q = torch.tensor([[1.0, 5.0], [2.0, 3.0]])
    got = td3_target(torch.tensor([1.0, 1.0]), torch.tensor([0.9, 0.0]), next_q)
    assert got.tolist() == pytest.approx([1.9, 1.0])


def test_iql_by_hand() -> None:
    u = torch.tensor([2.0, -1.0])
    assert float(expectile_loss(u, 0.7)) == pytest.approx((0.7 * 4 + 0.3 * 1) / 2)
    loss, _ = policy_loss(torch.tensor([-1.0, -2.0]), torch.tensor([0.1, 10.0]), 3.0, 100.0)
    assert float(loss) == pytest.approx((math.exp(0.3) * 1 + 100.0 * 2) / 2)


def test_expectile_is_the_distributions_expectile() -> None:
    """The minimiser over a constant solves tau E(x - e)+ = (1 - tau) E(e - x)+."""
    x = torch.tensor(stats.expon.ppf((np.arange(2000) + 0.5) / 2000))
    guess = torch.zeros(1, dtype=D, requires_grad=True)
    optimiser = torch.optim.LBFGS([guess], max_iter=100)

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = expectile_loss(x - guess, 0.7)
        loss.backward()
        return loss

    optimiser.step(closure)
    gap = (x - guess.detach()).numpy()
    assert 0.7 * gap.clip(0).mean() == pytest.approx(0.3 * (-gap).clip(0).mean(), rel=1e-4)


def test_squashed_log_prob_is_a_density() -> None:
    """The density of the squashed action integrates to 1 and agrees with scipy's normal."""
    spec = Spec("line", 2, 1, None, (-3.0,), (3.0,), 10)
    policy = SquashedGaussianPolicy(spec, (8,), generator=torch.Generator().manual_seed(0))
    obs = torch.tensor([[0.3, -0.7]])
    grid = torch.linspace(-0.99999, 0.99999, 200_001, dtype=torch.float32)[:, None]
    with torch.no_grad():
        density = policy.double().log_prob(obs.double(), grid.double()).exp().numpy()
        mean, log_std = policy.distribution(obs.double())
    assert np.trapezoid(density, grid[:, 0].numpy()) == pytest.approx(1.0, abs=1e-3)
    pre = np.arctanh(0.25)
    expected = stats.norm.logpdf(pre, float(mean), float(log_std.exp())) - np.log(1 - 0.25**2)
    got = policy.log_prob(obs.double(), torch.tensor([[0.25]], dtype=D)).detach()
    assert float(got) == pytest.approx(expected, abs=1e-9)


def test_log_prob_is_finite_at_the_bounds() -> None:
    spec = Spec("line", 2, 1, None, (-1.0,), (1.0,), 10)
    policy = SquashedGaussianPolicy(spec, (8,), generator=torch.Generator().manual_seed(0))
    action = torch.tensor([[1.0], [-1.0]])
    assert torch.isfinite(policy.log_prob(torch.zeros(2, 2), action)).all()
