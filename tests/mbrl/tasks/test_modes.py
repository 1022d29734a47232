"""Modes-v0 and Obstacle-v0: rewards in literal numbers, moves against densely sampled ones, and
what a policy of one mode is worth."""

import math

import pytest
import torch

from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.tasks.modes import Modes


def test_rewards_of_two_goals() -> None:
    task = make("Modes-v0")
    state = torch.tensor([[0.0, 1.0]]).expand(4, -1)
    action = torch.tensor([[0.0, 0.7], [0.0, -0.7], [0.0, 0.0], [0.4, 0.7]])
    step = task.step(state, action)
    expected = [1.0, 1.0, math.exp(-0.49 / 0.08), math.exp(-2.0)]
    assert step.reward.tolist() == pytest.approx(expected, abs=1e-6)
    assert step.terminated.all() and torch.equal(step.obs, state)
    assert task.terminates(state, action, state).all()
    assert task.step(state[:1], torch.tensor([[0.0, 9.0]])).reward.item() == pytest.approx(
        math.exp(-0.09 / 0.08)
    )


def test_goals_are_spread_evenly() -> None:
    task = make("Modes-v0", modes=3)
    assert isinstance(task, Modes) and task.spec.reference_returns is None
    (goals,) = task.goals(torch.tensor([[1.0, 0.0]]))
    half, high = -0.35, 0.7 * math.sin(2 * math.pi / 3)
    assert torch.allclose(goals, torch.tensor([[0.7, 0.0], [half, high], [half, -high]]), atol=1e-6)
    assert torch.allclose(goals.mean(0), torch.zeros(2), atol=1e-6)


def test_reference_is_the_return_of_uniform_actions() -> None:
    task, generator = make("Modes-v0"), torch.Generator().manual_seed(0)
    state = task.reset(200_000, generator)
    assert torch.allclose(state.norm(dim=1), torch.ones(len(state)), atol=1e-5)
    action = 2 * torch.rand(len(state), 2, generator=generator) - 1
    assert task.spec.reference_returns is not None
    mean = float(task.step(state, action).reward.mean())
    assert mean == pytest.approx(task.spec.reference_returns[0], abs=3e-3)


@pytest.mark.parametrize(("side", "paid"), [(0.0, 0.0), (1.0, 1.0), (-1.0, 1.0)])
def test_straight_on_ends_at_the_obstacle_and_either_side_arrives(side: float, paid: float) -> None:
    task = make("Obstacle-v0")
    state, total = torch.tensor([[-1.0, 0.0]]), 0.0
    for _ in range(20):
        aim = [0.0, 0.7 * side] if side and float(state[0, 0]) < -0.05 else [1.0, 0.0]
        way = torch.tensor([aim]) - state
        step = task.step(state, way / way.norm())
        total += float(step.reward)
        state = step.state
        if bool(step.terminated):
            break
    assert bool(step.terminated) and total == paid


def test_moves_against_points_on_their_way() -> None:
    task, generator = make("Obstacle-v0"), torch.Generator().manual_seed(1)
    start = 2 * torch.rand(2000, 2, generator=generator) - 1
    start = start[start.norm(dim=1) > 0.4]
    action = 2 * torch.rand(len(start), 2, generator=generator) - 1
    step = task.step(start, action)
    shares = torch.linspace(0, 1, 2001)[:, None, None]
    nearest = (start + shares * 0.25 * action).norm(dim=2).min(0).values
    arrived = (step.state - torch.tensor([1.0, 0.0])).norm(dim=1) <= 0.2
    clear = (nearest - 0.4).abs() > 1e-4
    assert torch.equal(step.terminated[clear], ((nearest <= 0.4) | arrived)[clear])
    assert torch.equal(step.reward[clear], (arrived & (nearest > 0.4)).float()[clear])
    assert int((nearest < 0.4).sum()) > 50 and int(arrived.sum()) > 10


def test_starts_lie_at_the_left() -> None:
    state = make("Obstacle-v0").reset(1000, torch.Generator().manual_seed(0))
    assert (state[:, 0] == -1).all() and float(state[:, 1].abs().max()) <= 0.1
    assert float(state[:, 1].std()) == pytest.approx(0.2 / math.sqrt(12), rel=0.1)


def test_one_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="modes=1, there must be at least 2"):
        make("Modes-v0", modes=1)
