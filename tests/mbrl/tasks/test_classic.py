"""The classic tasks against gymnasium, one step from the same states, boundaries included."""

import math

import gymnasium
import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.tasks import TASKS, Task, make

# Ranges that reach well past every clip, wall, wrap and end rule (state low, state high).
RANGES = {
    "Pendulum-v1": ([-20.0, -8.0], [20.0, 8.0]),
    "CartPole-v1": ([-2.5, -3.0, -0.25, -3.0], [2.5, 3.0, 0.25, 3.0]),
    "MountainCar-v0": ([-1.2, -0.07], [0.6, 0.07]),
    "MountainCarContinuous-v0": ([-1.2, -0.07], [0.6, 0.07]),
    "Acrobot-v1": ([-math.pi, -math.pi, -12.5, -28.2], [math.pi, math.pi, 12.5, 28.2]),
}
COUNT = 10_000


def draw(task_id: str) -> tuple[np.ndarray, np.ndarray]:
    """COUNT states (a fifth with one or more coordinates on a bound) and actions, a third of the
    continuous ones beyond their bounds."""
    rng = np.random.default_rng(7)
    low, high = (np.array(v) for v in RANGES[task_id])
    state = rng.uniform(low, high, size=(COUNT, len(low)))
    corner = np.where(rng.random(state.shape) < 0.5, low, high)
    pick = (rng.random(state.shape) < 0.5) & (np.arange(COUNT)[:, None] % 5 == 0)
    state = np.where(pick, corner, state)
    spec = make(task_id).spec
    if spec.discrete:
        return state, rng.integers(0, spec.num_actions or 0, size=COUNT)
    return state, rng.uniform(-1.5, 1.5, size=(COUNT, 1)) * spec.action_high[0]


def gymnasium_steps(task_id: str, state: np.ndarray, action: np.ndarray) -> dict[str, np.ndarray]:
    env = gymnasium.make(task_id, disable_env_checker=True).unwrapped
    env.reset(seed=0)
    rows: dict[str, list] = {"state": [], "obs": [], "reward": [], "terminated": []}
    for s, a in zip(state, action, strict=True):
        env.state = s.copy()
        if hasattr(env, "steps_beyond_terminated"):
            env.steps_beyond_terminated = None
        obs, reward, terminated, truncated, _ = env.step(a)
        assert not truncated
        reached = np.array(env.state, dtype=np.float64)
        for name, value in zip(rows, (reached, obs, reward, terminated), strict=True):
            rows[name].append(value)
    return {name: np.array(values) for name, values in rows.items()}


def tensors(state: np.ndarray, action: np.ndarray, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    act = torch.from_numpy(action)
    return torch.from_numpy(state).to(dtype), act.to(dtype) if act.ndim == 2 else act


@pytest.mark.parametrize("task_id", RANGES)
def test_one_step_equals_gymnasium_in_float64(task_id: str) -> None:
    state, action = draw(task_id)
    theirs = gymnasium_steps(task_id, state, action)
    ours = make(task_id, dtype=torch.float64).step(*tensors(state, action, torch.float64))
    reached = ours.state.numpy()
    if task_id == "MountainCarContinuous-v0":  # gymnasium rounds this one's state to float32
        np.testing.assert_allclose(reached, theirs["state"], rtol=6e-8, atol=1e-12)
    else:
        np.testing.assert_allclose(reached, theirs["state"], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(ours.obs.numpy(), theirs["obs"], rtol=2e-7, atol=1e-7)
    np.testing.assert_allclose(ours.reward.numpy(), theirs["reward"], rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(ours.terminated.numpy(), theirs["terminated"])
    if "Pendulum" not in task_id:
        assert ours.terminated.any()
        assert not ours.terminated.all()


@pytest.mark.parametrize("task_id", RANGES)
def test_one_step_equals_gymnasium_in_float32(task_id: str) -> None:
    state, action = draw(task_id)
    state = state.astype(np.float32).astype(np.float64)
    action = action if action.ndim == 1 else action.astype(np.float32).astype(np.float64)
    theirs = gymnasium_steps(task_id, state, action)
    ours = make(task_id).step(*tensors(state, action, torch.float32))
    scale = np.maximum(np.abs(theirs["state"]), np.abs(np.array(RANGES[task_id][1])))
    difference = np.abs(ours.state.numpy() - theirs["state"])
    error = difference / scale
    if task_id == "Acrobot-v1":
        # An angle within rounding of +-pi may wrap either way, and near its top speeds one
        # Runge-Kutta step of 0.2 s amplifies rounding a thousandfold, in any implementation.
        error[:, :2] = np.minimum(error[:, :2], (2 * np.pi - difference[:, :2]) / scale[:, :2])
        assert error.max() < 1e-3
        error = error[(np.abs(state[:, 2:]) < [2 * np.pi, 4.5 * np.pi]).all(axis=1)]
        assert len(error) > 2000
    assert error.max() < 1e-5
    assert ours.obs.dtype == ours.reward.dtype == torch.float32
    same = ours.terminated.numpy() == theirs["terminated"]
    assert same.mean() > 0.999
    reward = np.abs(ours.reward.numpy() - theirs["reward"])
    # the wrapped angle of the pendulum jumps at the bottom, where its square does not
    assert (reward[same] / np.maximum(1.0, np.abs(theirs["reward"][same]))).max() < 1e-5


def test_continuous_mountain_car_follows_its_closed_form_in_float64() -> None:
    state, action = draw("MountainCarContinuous-v0")
    x, v = state.T
    v = np.clip(v + 0.0015 * np.clip(action[:, 0], -1, 1) - 0.0025 * np.cos(3 * x), -0.07, 0.07)
    x = np.clip(x + v, -1.2, 0.6)
    v = np.where((x == -1.2) & (v < 0), 0.0, v)
    task = make("MountainCarContinuous-v0", dtype=torch.float64)
    ours = task.step(*tensors(state, action, torch.float64)).state.numpy()
    np.testing.assert_allclose(ours, np.stack([x, v], axis=-1), rtol=1e-12, atol=1e-15)
    assert (ours[:, 0] == -1.2).sum() > 50


@pytest.mark.parametrize("task_id", RANGES)
def test_starts_come_from_gymnasiums_distribution(task_id: str) -> None:
    env = gymnasium.make(task_id, disable_env_checker=True).unwrapped
    env.reset(seed=3)
    theirs = np.array([(env.reset(), np.array(env.state))[1] for _ in range(3000)])
    task = make(task_id, dtype=torch.float64)
    ours = task.reset(3000, torch.Generator().manual_seed(5))
    for column in range(theirs.shape[1]):
        assert stats.ks_2samp(ours[:, column], theirs[:, column]).pvalue > 1e-3
    again = make(task_id).reset(3000, torch.Generator().manual_seed(5))
    assert torch.equal(ours.float(), again)


@pytest.mark.parametrize("task_id", RANGES)
def test_spec_equals_gymnasiums(task_id: str) -> None:
    env = gymnasium.make(task_id)
    spec = make(task_id).spec
    assert spec.obs_dim == env.observation_space.shape[0]
    assert spec.max_episode_steps == gymnasium.spec(task_id).max_episode_steps
    if spec.discrete:
        assert spec.num_actions == env.action_space.n
    else:
        assert spec.action_low == tuple(env.action_space.low)
        assert spec.action_high == tuple(env.action_space.high)


def random_actions(task: Task, count: int, generator: torch.Generator) -> Tensor:
    if task.spec.discrete:
        return torch.randint(task.spec.num_actions or 0, (count,), generator=generator)
    unit = torch.rand((count, task.spec.action_dim), generator=generator)
    low, high = torch.tensor(task.spec.action_low), torch.tensor(task.spec.action_high)
    return low + (high - low) * unit


def options(task_id: str) -> list[dict]:
    if task_id == "PointMass-v0":
        return [{"inertia": i, "reward": r} for i in (0.0, 0.5) for r in ("bump", "zero")]
    return [{}]


OWN = [*RANGES, "CartPoleSwingUp-v0", "PointMass-v0", "Modes-v0", "Obstacle-v0"]


@pytest.mark.parametrize(("task_id", "kw"), [(t, kw) for t in OWN for kw in options(t)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_states_come_back_from_observations(task_id: str, kw: dict, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    task = make(task_id, dtype=dtype, **kw)
    state = task.reset(200, generator)
    tolerance = 2e-4 if dtype == torch.float32 else 1e-10
    for _ in range(60):
        action = random_actions(task, 200, generator)
        action = action.to(dtype) if action.ndim == 2 else action
        obs = task.observe(state)
        rebuilt, possible = task.state_from_obs(obs)
        assert possible.all()
        torch.testing.assert_close(task.observe(rebuilt), obs, rtol=1e-5, atol=1e-6)
        true, again = task.step(state, action), task.step(rebuilt, action)
        torch.testing.assert_close(again.obs, true.obs, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(again.reward, true.reward, rtol=tolerance, atol=tolerance)
        assert torch.equal(task.terminates(obs, action, true.obs), true.terminated)
        state = true.state


@pytest.mark.parametrize("task_id", OWN)
def test_impossible_observations_are_flagged(task_id: str) -> None:
    task = make(task_id)
    obs = task.observe(task.reset(3, torch.Generator().manual_seed(0)))
    obs[0, 0] = float("nan")
    obs[1, -1] = float("inf")
    assert task.state_from_obs(obs)[1].tolist() == [False, False, True]


def test_observations_off_the_circle_or_beyond_a_clip_are_flagged() -> None:
    pendulum = make("Pendulum-v1")
    obs = torch.tensor([[1.0, 0.0, 8.0], [0.5, 0.5, 0.0], [1.0, 0.0, 8.1]])
    assert pendulum.state_from_obs(obs)[1].tolist() == [True, False, False]
    car = torch.tensor([[-1.2, 0.07], [-1.3, 0.0], [0.0, 0.08]])
    assert make("MountainCar-v0").state_from_obs(car)[1].tolist() == [True, False, False]


@pytest.mark.parametrize("task_id", OWN)
def test_actions_in_double_precision_leave_a_task_in_its_own(task_id: str) -> None:
    generator, task = torch.Generator().manual_seed(0), make(task_id)
    state, action = task.reset(4, generator), random_actions(task, 4, generator)
    given = action.double() if action.ndim == 2 else action
    for ours, theirs in zip(task.step(state, given), task.step(state, action), strict=True):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)


def test_make_explains_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="nearest names: Pendulum-v1"):
        make("Pendulum-v0")
    with pytest.raises(ConfigError, match="centre, inertia, reward, sd"):
        make("PointMass-v0", friction=1.0)
    with pytest.raises(ConfigError, match="allowed: none"):
        make("Pendulum-v1", gravity=1.0)
    with pytest.raises(ConfigError, match="float32 or"):
        make("Pendulum-v1", dtype=torch.float16)
    task = make("CartPole-v1")
    state = task.reset(2, torch.Generator())
    with pytest.raises(ConfigError, match="action 2 is not in"):
        task.step(state, torch.tensor([0, 2]))
    with pytest.raises(ConfigError, match=r"shape \[B\]"):
        task.step(state, torch.zeros(2, 1))
    with pytest.raises(ConfigError, match=r"shape \[B, 1\]"):
        make("Pendulum-v1").step(state[:, :2], torch.zeros(2))


def test_every_task_is_listed_under_its_own_id() -> None:
    for task_id in TASKS:
        assert make(task_id).spec.task == task_id


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("task_id", OWN)
def test_steps_agree_on_a_gpu(task_id: str) -> None:
    generator = torch.Generator().manual_seed(1)
    task, there = (
        make(task_id, dtype=torch.float64),
        make(task_id, device="cuda", dtype=torch.float64),
    )
    state = task.reset(500, generator)
    action = random_actions(task, 500, generator)
    action = action.double() if action.ndim == 2 else action
    moved = there.step(state.cuda(), action.cuda())
    for ours, theirs in zip(task.step(state, action), moved, strict=True):
        assert theirs.device.type == "cuda"
        torch.testing.assert_close(theirs.cpu(), ours, rtol=1e-12, atol=1e-12)
    rebuilt, possible = there.state_from_obs(there.observe(state.cuda()))
    assert possible.all()
    assert rebuilt.device.type == "cuda"
