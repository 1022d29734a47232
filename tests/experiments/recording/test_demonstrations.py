"""Demonstrators: both ways in equal shares, and returns in closed form."""

import pytest
import torch

from experiments.recording.demonstrations import modes_demonstrator, obstacle_demonstrator
from mbrl import data
from mbrl.tasks import make


def test_either_goal_is_drawn() -> None:
    """E exp(-|n|^2 / (2 w^2)) of noise of deviation s in the plane: w^2 / (w^2 + s^2) = 0.862."""
    task, generator = make("Modes-v0"), torch.Generator().manual_seed(0)
    state = task.reset(20_000, generator)
    action = modes_demonstrator(task.observe(state), generator)
    assert float(task.step(state, action).reward.mean()) == pytest.approx(0.04 / 0.0464, abs=5e-3)
    along = (action * state).sum(1)
    assert float((along > 0).float().mean()) == pytest.approx(0.5, abs=0.02)
    assert float(along.abs().mean()) == pytest.approx(0.7, abs=0.01)


def test_either_side_is_drawn_once() -> None:
    """Where the obstacle is ahead a side is drawn, beside it the demonstrator keeps to its own."""
    generator = torch.Generator().manual_seed(0)
    ahead = torch.tensor([[-1.0, 0.05]]).expand(4000, -1)
    up = obstacle_demonstrator(ahead, generator)[:, 1] > 0
    assert float(up.float().mean()) == pytest.approx(0.5, abs=0.03)
    above = torch.tensor([[-0.8, 0.2]]).expand(4000, -1)
    assert float((obstacle_demonstrator(above, generator)[:, 1] > 0).float().mean()) > 0.99
    past = torch.tensor([[0.0, 0.7]]).expand(4000, -1)
    mean = obstacle_demonstrator(past, generator).mean(0)
    assert torch.allclose(mean, torch.tensor([1.0, -0.7]) / 1.49**0.5, atol=0.02)


def test_recorded_demonstrations_go_both_ways() -> None:
    rows = data.load("obstacle/expert").transitions
    passed = rows.next_obs[(rows.obs[:, 0] < 0) & (rows.next_obs[:, 0] >= 0)]
    assert float((passed[:, 1] > 0).float().mean()) == pytest.approx(0.5, abs=0.1)
    assert float(rows.returns().mean()) > 0.95
    assert float(data.load("modes/expert").transitions.reward.mean()) == pytest.approx(
        0.04 / 0.0464, abs=0.02
    )
