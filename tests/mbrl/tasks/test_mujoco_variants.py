"""NeoRL-2's robots against gymnasium's environments, with their rewards computed beside."""

import warnings

import gymnasium
import numpy as np
import pytest
import torch

from mbrl.tasks import make
from mbrl.tasks.mujoco_variants import older_margin


@pytest.fixture(autouse=True)
def quiet(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo writes its warnings to a file in the working directory."""
    monkeypatch.chdir(str(tmp_path))


def environment(task_id: str) -> gymnasium.Env:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # version 4 says that it is old
        return gymnasium.make(
            task_id, disable_env_checker=True, exclude_current_positions_from_observation=False
        ).unwrapped


def test_safety_half_cheetah_is_half_cheetah_with_a_limit() -> None:
    env, task = environment("HalfCheetah-v4"), make("SafetyHalfCheetah-v0", dtype=torch.float64)
    env.reset(seed=0)
    q, v = env.data.qpos.copy(), env.data.qvel.copy()
    v[0] = 4.0  # above the limit at first, below it later
    env.set_state(q, v)
    state = task.state_from_simulator(torch.tensor(q)[None], torch.tensor(v)[None])
    rng, above = np.random.default_rng(0), []
    for _ in range(200):
        action = rng.uniform(-1, 1, 6).astype(np.float32)
        seen, reward, _, _, info = env.step(action)
        step = task.step(state, torch.from_numpy(action)[None])
        state = step.state
        np.testing.assert_allclose(step.obs[0].numpy(), seen, atol=1e-12)
        above.append(info["x_velocity"] > 3.2096)
        expected = -100.0 if above[-1] else reward
        assert float(step.reward) == pytest.approx(expected, abs=1e-6)
        assert not step.terminated.any()
    assert 0 < sum(above) < 200


@pytest.mark.parametrize("friction", [1.5049, 2.2])
def test_friction_hopper_is_a_hopper_on_another_foot(friction: float) -> None:
    env, task = environment("Hopper-v4"), make("RandomFrictionHopper-v0", dtype=torch.float64)
    older_margin(env.model)
    env.model.geom("foot_geom").friction[0] = round(friction, 2)
    env.reset(seed=1)
    q, v = torch.tensor(env.data.qpos)[None], torch.tensor(env.data.qvel)[None]
    state = task.state_from_simulator(q, v, torch.tensor([[friction]]))
    rng = np.random.default_rng(0)
    for _ in range(200):
        action = rng.uniform(-1, 1, 3).astype(np.float32)
        seen, reward, terminated, _, _ = env.step(action)
        step = task.step(state, torch.from_numpy(action)[None])
        np.testing.assert_allclose(step.obs[0].numpy(), [*seen, friction], atol=1e-12)
        assert float(step.reward) == pytest.approx(reward - 1.0, abs=1e-6)  # no bonus for living
        assert bool(step.terminated) == terminated
        state = step.state
        if terminated:
            return
    raise AssertionError("a hopper that pushes at random falls")


def test_frictions_are_of_rows_on_any_number_of_threads() -> None:
    one, two = make("RandomFrictionHopper-v0"), make("RandomFrictionHopper-v0", threads=2)
    generator = torch.Generator().manual_seed(0)
    state = one.reset(40, generator)
    friction = state[:, -1]
    assert float(friction.min()) >= 1.5 and float(friction.max()) < 2.5
    order = torch.randperm(40, generator=generator)
    mixed = state[order]
    for _ in range(30):
        action = 2 * torch.rand(40, 3, generator=generator) - 1
        step, other = one.step(state, action), two.step(mixed, action[order])
        assert torch.equal(step.state[order], other.state) and torch.equal(
            step.obs[order], other.obs
        )
        assert torch.equal(step.state[:, -1], friction)
        state, mixed = step.state, other.state


@pytest.mark.parametrize("task_id", ["SafetyHalfCheetah-v0", "RandomFrictionHopper-v0"])
def test_states_come_back_from_observations(task_id: str) -> None:
    task = make(task_id, dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    state = task.reset(20, generator)
    for _ in range(20):
        action = 2 * torch.rand(20, task.spec.action_dim, generator=generator) - 1
        obs = task.observe(state)
        rebuilt, possible = task.state_from_obs(obs)
        true, again = task.step(state, action), task.step(rebuilt, action)
        torch.testing.assert_close(again.obs[possible], true.obs[possible], rtol=1e-5, atol=1e-5)
        assert torch.equal(task.terminates(obs, action, true.obs), true.terminated)
        state = true.state
    assert possible.any()
    obs[0, -1] = float("nan")
    assert not task.state_from_obs(obs)[1][0]
