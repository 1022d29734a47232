"""The coupled masses against their matrix, the pipeline against a queue, and their starts."""

from collections import deque

import numpy as np
import pytest
import torch
from scipy import stats

from mbrl.errors import ConfigError
from mbrl.tasks import common, make
from mbrl.tasks.common import hashed_uniform


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


def test_pipeline_is_a_queue() -> None:
    task = make("Pipeline-v0", dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    state = task.reset(30, generator)
    flow = task.observe(state)[:, 0].tolist()
    assert min(flow) >= 80 and max(flow) <= 120
    pipes = [deque([f] * 20, maxlen=20) for f in flow]
    ends, turns = [[f] * 26 for f in flow], [[0.0] * 25 for _ in flow]
    drift = torch.linspace(-1.5, 1.5, 30, dtype=torch.float64)[:, None]  # some reach 0 or 200
    for _ in range(300):
        turn = drift + torch.randn(30, 1, generator=generator, dtype=torch.float64)
        step = task.step(state, turn)
        for i, pipe in enumerate(pipes):
            given = min(max(float(turn[i]), -1.0), 1.0)
            pipe.appendleft(min(max(pipe[0] + given, 0.0), 200.0))
            ends[i].insert(0, pipe[-1])
            turns[i].insert(0, given)
            target = float(step.obs[i, 1])
            expected = [pipe[-1], target, *ends[i][1:26], *turns[i][:25]]
            np.testing.assert_allclose(step.obs[i].numpy(), expected, atol=1e-9)
            reward = ((200 - abs(pipe[-1] - target)) / 100) ** 2 - 3
            assert float(step.reward[i]) == pytest.approx(reward, abs=1e-9)
        rebuilt, possible = task.state_from_obs(step.obs)
        assert possible.all() and not step.terminated.any()
        torch.testing.assert_close(rebuilt[:, 3:], step.state[:, 3:])
        state = step.state
    assert float(state[:, 3:23].max()) == 200 and float(state[:, 3:23].min()) == 0


def test_targets_of_the_pipeline_follow_from_the_state() -> None:
    task = make("Pipeline-v0")
    state = task.reset(2000, torch.Generator().manual_seed(1))
    again, still = state.clone(), state.clone()
    still[:, 1] = 0
    none, changes, seen = torch.zeros(2000, 1), 0, torch.zeros(4)
    for _ in range(200):
        before = state[:, 0]
        state, again, still = (task.step(s, none).state for s in (state, again, still))
        changes += int((state[:, 0] != before).sum())
        seen += torch.stack([(state[:, 0] == t).sum() for t in task.targets])
    assert torch.equal(state, again)
    assert bool((still[:, 0] != state[:, 0]).any()) and still[:, 0].unique().numel() == 4
    share = changes / (2000 * 200)  # a new target is the old one in a quarter of the draws
    assert share == pytest.approx(0.003 * 0.75, rel=0.1)
    assert bool(((seen / seen.sum() - 0.25).abs() < 0.03).all())


def test_impossible_pipelines_are_flagged() -> None:
    task = make("Pipeline-v0")
    obs = task.observe(task.reset(4, torch.Generator().manual_seed(0)))
    obs[0, 1], obs[1, 0], obs[2, -1] = float("nan"), 201.0, 1.5
    assert task.state_from_obs(obs)[1].tolist() == [False, False, False, True]


def test_hashed_draws_are_uniform_and_independent() -> None:
    seed, counter = torch.arange(1, 201).repeat_interleave(500), torch.arange(500).repeat(200)
    draws = hashed_uniform(seed, counter)
    assert stats.kstest(draws.numpy(), "uniform").pvalue > 1e-3
    table = draws.view(200, 500)
    for other in (table[:, 1:].flatten(), table.roll(1, 0)[:, :-1].flatten()):
        assert abs(float(np.corrcoef(table[:, :-1].flatten(), other)[0, 1])) < 0.015
    # SplitMix64 of seed 0 begins with this number (Vigna's reference implementation)
    first = common._mixed(torch.tensor([0]))
    assert int(first) & (2**64 - 1) == 0xE220A8397B1DCDAF
