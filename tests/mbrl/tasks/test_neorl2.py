"""The coupled masses against their matrix, and the distribution of their starts."""

import numpy as np
import pytest
import torch
from scipy import stats

from mbrl.errors import ConfigError
from mbrl.tasks import make


def coupled_masses(mass: float) -> tuple[np.ndarray, np.ndarray]:
    """(A [4, 4], B [4, 2]) of the explicit Euler step, from the stiffness of a chain."""
    chain = np.array([[2.0, -1.0], [-1.0, 2.0]])
    speeds = np.hstack([-2.0 * chain, -4.0 * chain]) / mass
    rates = np.vstack([np.hstack([np.zeros((2, 2)), np.eye(2)]), speeds])
    return np.eye(4) + 0.2 * rates, 0.2 * 30.0 / mass * np.vstack([np.zeros((2, 2)), np.eye(2)])


@pytest.mark.parametrize("mass", [20.0, 30.0])
def test_masses_follow_their_matrix(mass: float) -> None:
    task = make("DMSD-v0", dtype=torch.float64, mass=mass)
    generator = torch.Generator().manual_seed(0)
    state = task.reset(50, generator)
    assert bool((state[:, 8] == 0).all()) and bool((state[:, 4:6] != state[:, 6:8]).any())
    a, b = coupled_masses(mass)
    for t in range(1, 101):
        push = 3 * torch.rand(50, 2, generator=generator, dtype=torch.float64) - 1.5
        step = task.step(state, push)
        expected = state[:, :4].numpy() @ a.T + push.clamp(-1, 1).numpy() @ b.T
        target = state[:, 6:8] if t >= 50 else state[:, 4:6]
        np.testing.assert_allclose(step.obs[:, :4].numpy(), expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(step.obs[:, 4:], target)
        gap = np.abs(expected[:, :2] - target.numpy())
        np.testing.assert_allclose(step.reward.numpy(), -np.log(gap + 0.01).sum(1), atol=1e-9)
        assert not step.terminated.any()
        state = step.state


def test_masses_start_as_said() -> None:
    task = make("DMSD-v0", dtype=torch.float64)
    state = task.reset(20_000, torch.Generator().manual_seed(1))
    for columns, reach in (((0, 1), 0.25), ((2, 3), 0.1), ((4, 5, 6, 7), 1.5)):
        for column in columns:
            unit = state[:, column].numpy() / reach
            assert stats.kstest(unit, stats.uniform(-1, 2).cdf).pvalue > 1e-4
    changes = (state[:, 4:6] != state[:, 6:8]).double()
    assert changes.mean(dim=0).sub(0.5).abs().max() < 0.02
    assert abs(float(np.corrcoef(changes.T.numpy())[0, 1])) < 0.03


def test_states_of_masses_from_observations_keep_their_targets() -> None:
    task = make("DMSD-v0")
    obs = task.observe(task.reset(3, torch.Generator().manual_seed(0)))
    obs[0, 0] = float("nan")
    state, possible = task.state_from_obs(obs)
    assert possible.tolist() == [False, True, True]
    for _ in range(60):
        state = task.step(state, torch.zeros(3, 2)).state
    torch.testing.assert_close(task.observe(state)[1:, 4:], obs[1:, 4:])


def test_a_mass_is_positive() -> None:
    with pytest.raises(ConfigError, match="mass=0 must be above 0"):
        make("DMSD-v0", mass=0)
