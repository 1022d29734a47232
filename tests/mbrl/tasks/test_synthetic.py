"""The swing-up against a continuous-time integration and its energy; the point mass by hand."""

import itertools
import math
import sys

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.tasks.synthetic import CartPoleSwingUp

CART, POLE, HALF, GRAVITY = 1.0, 0.1, 0.5, 9.8


def lagrange_derivative(_: float, state: np.ndarray, force: float) -> list[float]:
    """The same system from its Lagrangian: solve the 2x2 mass matrix for the accelerations."""
    _, x_dot, theta, theta_dot = state
    moment = POLE * HALF**2 * (1 + 1 / 3)
    mass = [[CART + POLE, POLE * HALF * math.cos(theta)], [POLE * HALF * math.cos(theta), moment]]
    right = [
        force + POLE * HALF * theta_dot**2 * math.sin(theta),
        POLE * GRAVITY * HALF * math.sin(theta),
    ]
    x_acc, theta_acc = np.linalg.solve(mass, right)
    return [x_dot, x_acc, theta_dot, theta_acc]


def energy(state: Tensor) -> Tensor:
    _, x_dot, theta, theta_dot = state.unbind(-1)
    kinetic = 0.5 * (CART + POLE) * x_dot**2 + POLE * HALF * x_dot * theta_dot * theta.cos()
    kinetic = kinetic + 0.5 * POLE * HALF**2 * (4 / 3) * theta_dot**2
    return kinetic + POLE * GRAVITY * HALF * theta.cos()


def simulate(start: Tensor, force: float, dt: float, seconds: float) -> Tensor:
    task = CartPoleSwingUp(dtype=torch.float64)
    task.dt = dt
    state = start
    for _ in range(round(seconds / dt)):
        state = task.step(state, torch.full((len(state), 1), force / 10, dtype=torch.float64)).state
    return state


@pytest.mark.parametrize("force", [0.0, 4.0, -10.0])
def test_swing_up_converges_to_the_continuous_system(force: float) -> None:
    start = torch.tensor([[0.3, -0.2, 2.5, 1.0]], dtype=torch.float64)
    exact = solve_ivp(
        lagrange_derivative, (0, 0.8), start[0].numpy(), args=(force,), rtol=1e-10, atol=1e-12
    ).y[:, -1]
    errors = [
        float(np.abs(simulate(start, force, dt, 0.8)[0].numpy() - exact).max())
        for dt in (0.02, 0.01, 0.005, 0.0025)
    ]
    assert errors[0] < 0.3
    ratios = [a / b for a, b in itertools.pairwise(errors)]
    assert all(1.6 < r < 2.5 for r in ratios), (errors, ratios)  # first order


def test_free_swing_up_keeps_its_energy() -> None:
    start = torch.tensor([[0.0, 0.0, 2.0, 0.0], [0.0, 0.5, 3.0, 1.0]], dtype=torch.float64)
    first = energy(start)
    swing = 2 * POLE * GRAVITY * HALF
    drift = [
        float((energy(simulate(start, 0.0, dt, 10.0)) - first).abs().max())
        for dt in (0.02, 0.01, 0.005)
    ]
    assert drift[0] < 0.05 * swing
    assert drift[2] < 0.6 * drift[0]


def test_swing_up_with_other_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """One small step is that of the Lagrangian with the same constants."""
    start = torch.tensor([[0.3, -0.2, 2.5, 1.0]], dtype=torch.float64)
    for name, value in (("GRAVITY", 4.0), ("POLE", 0.4), ("HALF", 1.1)):
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules[__name__], name, value)
            option = {"GRAVITY": "gravity", "POLE": "pole_mass", "HALF": "half_length"}[name]
            task = CartPoleSwingUp(**{option: value}, dtype=torch.float64)
            task.dt = 1e-6
            moved = task.step(start, torch.tensor([[0.4]], dtype=torch.float64)).state
            rate = ((moved - start) / 1e-6)[0].numpy()
            expected = lagrange_derivative(0.0, start[0].numpy(), 4.0)
        np.testing.assert_allclose(rate[[1, 3]], np.array(expected)[[1, 3]], rtol=1e-6)
    with pytest.raises(ConfigError, match="gravity=0"):
        make("CartPoleSwingUp-v0", gravity=0.0)


def test_swing_up_starts_and_rewards() -> None:
    task = make("CartPoleSwingUp-v0", dtype=torch.float64)
    start = task.reset(2000, torch.Generator().manual_seed(0))
    offset = start - torch.tensor([0.0, 0.0, math.pi, 0.0], dtype=torch.float64)
    assert 0.049 < offset.abs().max() <= 0.05
    assert offset.min() < -0.049
    step = task.step(start[:1].clone(), torch.tensor([[3.0]], dtype=torch.float64))
    x, _, theta, _ = step.state[0].tolist()
    expected = (1 + math.cos(theta)) / 2 - 0.01 - 0.02 * x**2
    assert step.reward.item() == pytest.approx(expected, abs=1e-12)
    far = torch.tensor([[9.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    reward = task.step(far, torch.zeros((1, 1), dtype=torch.float64)).reward.item()
    assert reward == pytest.approx(1 - 0.5)
    assert task.spec.max_episode_steps == 500
    assert not step.terminated.any()


def test_point_mass_moves_and_rewards_by_hand() -> None:
    state = torch.tensor([[1.0, -1.0]])
    action = torch.tensor([[0.5, 3.0]])
    assert make("PointMass-v0").step(state, action).obs.tolist() == [[1.5, 0.0]]
    assert make("PointMass-v0").step(state, action).reward.item() == pytest.approx(-0.15)
    bump = make("PointMass-v0", reward="bump", centre=(1.5, 1.0), sd=0.5)
    assert bump.step(state, action).reward.item() == pytest.approx(math.exp(-2.0))
    assert make("PointMass-v0", reward="zero").step(state, action).reward.item() == 0.0
    heavy = make("PointMass-v0", inertia=0.5)
    moving = torch.tensor([[1.0, -1.0, 0.4, -0.2]])
    np.testing.assert_allclose(heavy.step(moving, action).obs, [[1.7, -0.1, 0.7, 0.9]], atol=1e-6)
    start = heavy.reset(5000, torch.Generator().manual_seed(0))
    assert start[:, 2:].eq(0).all()
    assert start[:, :2].abs().max() <= 2
    np.testing.assert_allclose(start[:, :2].var(0), 4 / 3, rtol=0.05)


def test_point_mass_refuses_impossible_options() -> None:
    with pytest.raises(ConfigError, match="bump"):
        make("PointMass-v0", reward="bumb")
    with pytest.raises(ConfigError, match="sd=0"):
        make("PointMass-v0", sd=0.0)
