"""Rewards of windows against gymnasium's pendulum and the data's own windows; denoisers to which
entries are given."""

import dataclasses
from typing import Any

import gymnasium
import pytest
import torch

from algorithms.diffusion_rl import (
    conditional_loss,
    fit_conditional,
    reward_at_states,
    simulated_return,
    window_error,
)
from mbrl import tasks
from mbrl.data import load
from mbrl.errors import ConfigError, DataError
from mbrl.tasks.base import Step
from tests.algorithms.diffusion_rl.linear import Constant, normal
from world_models.trajectory_diffusion import denoising_loss
from world_models.windows import Tokens, window_rows


@pytest.fixture(name="windows", scope="module")
def _windows() -> tuple[Tokens, torch.Tensor, torch.Tensor]:
    """Tokens, and twenty standardised windows of nine observations with their rewards."""
    rows = load("pendulum/medium-replay").transitions
    tokens = Tokens(load("pendulum/medium-replay").spec)
    raw = tokens.raw(rows)
    tokens.fit(raw)
    index = window_rows(rows, 9, 60)[:20]
    return tokens, tokens.normaliser(raw)[index], rows.reward[index]


def test_a_logged_window_earns_what_was_logged(windows) -> None:
    tokens, x, reward = windows
    task = tasks.make("Pendulum-v1")
    found = simulated_return(tokens, x, task)
    torch.testing.assert_close(found, reward[:, :-1].sum(1), rtol=1e-3, atol=0.05)
    assert float(window_error(tokens, x, task).max()) < 1e-8


def test_actions_count_and_what_a_window_says_does_not(windows) -> None:
    """Against gymnasium's own pendulum, from the first observation alone."""
    tokens, x, _ = windows
    moved = x + 0.3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    moved[:, 0] = x[:, 0]
    task = tasks.make("Pendulum-v1")
    found = simulated_return(tokens, moved, task)
    env = gymnasium.make("Pendulum-v1").unwrapped
    env.reset(seed=0)
    actions = tokens.scale.to_task(tokens.unit_actions(moved))
    for row in range(3):
        c, s, speed = tokens.observations(moved)[row, 0].tolist()
        env.state = [float(torch.atan2(torch.tensor(s), torch.tensor(c))), speed]
        total = sum(float(env.step(actions[row, t].numpy())[1]) for t in range(8))
        assert float(found[row]) == pytest.approx(total, rel=1e-3, abs=0.02)
    assert float(window_error(tokens, moved, task).min()) > 0.01


def test_rewards_at_the_states_of_a_window_are_the_tasks_own(windows) -> None:
    """Those of possible windows are what the task pays; with a slope by central differences."""
    tokens, x, reward = windows
    task = tasks.make("Pendulum-v1")
    assert torch.allclose(
        reward_at_states(tokens, x, task), reward[:, :-1].sum(1), rtol=1e-3, atol=0.05
    )
    leaf = x[:2].clone().requires_grad_()
    (slope,) = torch.autograd.grad(reward_at_states(tokens, leaf, task).sum(), leaf)
    for entry in (0, 1, 2, 3):
        step = torch.zeros_like(x[:2])
        step[:, 4, entry] = 0.01
        ends = [reward_at_states(tokens, x[:2] + sign * step, task) for sign in (1.0, -1.0)]
        measured = (ends[0] - ends[1]) / 0.02
        assert torch.allclose(slope[:, 4, entry], measured, rtol=0.05, atol=0.02)
    assert (slope[:, -1] == 0).all()  # nothing is paid for the last token


def test_an_observation_off_its_circle_is_taken_for_the_nearest_angle(windows) -> None:
    tokens, x, _ = windows
    raw = tokens.restored(x)
    raw[:, 0, :2] *= 0.9
    task = tasks.make("Pendulum-v1")
    bent = simulated_return(tokens, tokens.normaliser(raw), task)
    torch.testing.assert_close(bent, simulated_return(tokens, x, task), rtol=1e-4, atol=1e-2)


class Counter:
    """A task whose state is a number of steps, which pays 1 each and ends at three."""

    def state_from_obs(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return obs[:, 0], obs[:, 0] >= 0

    def observe(self, state: torch.Tensor) -> torch.Tensor:
        return state[:, None]

    def step(self, state: torch.Tensor, action: torch.Tensor) -> Step:
        after = state + 1
        return Step(after, after[:, None], torch.ones_like(after), after >= 3)


def test_nothing_is_paid_after_the_end_or_from_nowhere() -> None:
    spec = dataclasses.replace(load("pendulum/medium-replay").spec, obs_dim=1)
    tokens = Tokens(spec)
    windows = torch.zeros(3, 9, tokens.size)
    windows[:, 0, 0] = torch.tensor([0.0, 2.0, -1.0])
    task: Any = Counter()
    assert simulated_return(tokens, windows, task).tolist() == [3.0, 1.0, 0.0]


def test_a_conditional_loss_is_edms_where_nothing_is_given() -> None:
    network, x, noise = Constant(3, 0.2), normal(8, 3), normal(8, 3, seed=1)
    sigma = normal(8, seed=2).exp()
    nothing = torch.zeros(3, dtype=torch.bool)
    found = conditional_loss(network, x, sigma, noise, nothing)
    torch.testing.assert_close(found, denoising_loss(network, x, sigma, noise))
    given = torch.tensor([True, False, True])
    clean = torch.where(given, 0.0, 1.0) * noise  # of given entries nothing is asked
    found = conditional_loss(network, x, sigma, noise, given)
    torch.testing.assert_close(found, conditional_loss(network, x, sigma, clean, given))


def test_a_fit_learns_what_the_given_entry_says() -> None:
    """Of two equal entries one is given: the other is known then."""

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(3, 64), torch.nn.SiLU(), torch.nn.Linear(64, 2)
            )

        def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layers(torch.cat([x, c[:, None]], 1))
            return out

    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2_000, 1, generator=draw).expand(-1, 2).contiguous()
    given, first = torch.tensor([True, False]), Network()
    own = fit_conditional(first, x, given, 800, draw)
    sigma, noise = torch.full((500,), 0.5), torch.randn(500, 2, generator=draw)
    before = conditional_loss(first, x[:500], sigma, noise, given)
    assert conditional_loss(own, x[:500], sigma, noise, given) < 0.5 * before


def test_a_fit_to_what_is_no_window_is_refused() -> None:
    draw, x, network = torch.Generator(), torch.zeros(4, 2), Constant(2)
    with pytest.raises(ConfigError, match=r"give torch\.bool"):
        fit_conditional(network, x, torch.tensor([1, 0], dtype=torch.uint8), 1, draw)
    x[2, 1] = torch.nan
    with pytest.raises(DataError, match="not finite"):
        fit_conditional(network, x, torch.tensor([True, False]), 1, draw)
