"""The MuJoCo tasks against gymnasium, step by step from the same positions and speeds."""

import warnings

import gymnasium
import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.tasks.mujoco import MujocoTask
from mbrl.tasks.mujoco_table import ROBOTS

# Ends and states are read by the same code in both versions.
NEWEST = [t if t.endswith("v5") else pytest.param(t, marks=pytest.mark.long) for t in ROBOTS]
SMALL = ("InvertedPendulum-v5", "InvertedDoublePendulum-v5", "Reacher-v5", "Hopper-v5")


@pytest.fixture(autouse=True)
def quiet(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo writes its warnings to a file in the working directory."""
    monkeypatch.chdir(str(tmp_path))


def environment(task_id: str) -> gymnasium.Env:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # version 4 says that it is old
        return gymnasium.make(task_id, disable_env_checker=True).unwrapped


def actions(task: MujocoTask, count: int, seed: int, reach: float = 1.0) -> Tensor:
    rng = np.random.default_rng(seed)
    high = np.array(task.spec.action_high)
    unit = rng.uniform(-reach, reach, size=(count, task.spec.action_dim))
    return torch.from_numpy((unit * high).astype(np.float32))


def put(task: MujocoTask, env: gymnasium.Env) -> Tensor:
    """The task's state of the environment's positions and speeds, just after a reset."""
    q, v = (torch.from_numpy(np.array(x))[None] for x in (env.data.qpos, env.data.qvel))
    return task.state_from_simulator(q, v)


@pytest.mark.parametrize("task_id", ROBOTS)
def test_trajectories_equal_gymnasiums(task_id: str) -> None:
    task, env = make(task_id, dtype=torch.float64), environment(task_id)
    assert isinstance(task, MujocoTask)
    steps, ends = 300, 0
    obs, _ = env.reset(seed=11)
    state = put(task, env)
    # now and then an action beyond the bounds: the actuators clip it, the cost does not
    for i, action in enumerate(actions(task, steps, seed=1, reach=1.2)):
        np.testing.assert_allclose(task.observe(state)[0], obs, rtol=1e-12, atol=1e-12)
        obs, reward, terminated, _, _ = env.step(action.numpy())
        state, seen, gain, ended = task.step(state, action[None])
        np.testing.assert_array_equal(state[0, : len(env.data.qpos)], env.data.qpos)
        np.testing.assert_allclose(seen[0], obs, rtol=1e-12, atol=1e-12)
        # gymnasium sums the squared float32 action in float32
        np.testing.assert_allclose(gain[0], reward, rtol=1e-6, atol=1e-6)
        assert bool(ended) == terminated
        if (terminated and i % 3) or i % 100 == 99:  # also go on beyond an end
            ends += int(terminated)
            obs, _ = env.reset()
            state = put(task, env)
    if not task_id.startswith(("Reacher", "Swimmer", "HalfCheetah", "Ant")):
        assert ends > 2


@pytest.mark.parametrize("task_id", ROBOTS)
def test_spec_equals_gymnasiums(task_id: str) -> None:
    env, spec = environment(task_id), make(task_id).spec
    assert (spec.obs_dim,) == env.observation_space.shape
    assert spec.action_low == tuple(env.action_space.low)
    assert spec.action_high == tuple(env.action_space.high)
    assert spec.max_episode_steps == gymnasium.spec(task_id).max_episode_steps


@pytest.mark.parametrize("task_id", [t for t in ROBOTS if t.endswith("v5")])
def test_starts_come_from_gymnasiums_distribution(task_id: str) -> None:
    env, task = environment(task_id), make(task_id, dtype=torch.float64)
    theirs = np.array([env.reset(seed=i)[0] for i in range(400)])
    ours = task.observe(task.reset(400, torch.Generator().manual_seed(2))).numpy()
    for column in range(theirs.shape[1]):
        assert stats.ks_2samp(ours[:, column], theirs[:, column]).pvalue > 1e-4
    again = task.observe(task.reset(400, torch.Generator().manual_seed(2))).numpy()
    np.testing.assert_array_equal(ours, again)


def walk(task: MujocoTask, count: int, steps: int) -> list[tuple[Tensor, Tensor]]:
    """(state, action) pairs of `count` random walks that restart where they end."""
    generator = torch.Generator().manual_seed(4)
    state, pairs = task.reset(count, generator), []
    for i in range(steps):
        action = actions(task, count, seed=i)
        pairs.append((state, action))
        step = task.step(state, action)
        fresh = task.reset(count, generator)
        state = torch.where(step.terminated[:, None], fresh, step.state)
    return pairs


@pytest.mark.parametrize("task_id", NEWEST)
def test_ends_are_read_from_observations_alone(task_id: str) -> None:
    task, seen = make(task_id), 0
    assert isinstance(task, MujocoTask)
    for state, action in walk(task, 40, 40):
        step = task.step(state, action)
        rule = task.terminates(task.observe(state), action, step.obs)
        assert torch.equal(rule, step.terminated)
        seen += int(rule.sum())
    if task_id.startswith(("Inverted", "Hopper", "Walker2d")):
        assert seen > 5


@pytest.mark.parametrize("task_id", NEWEST)
def test_states_come_back_from_observations(task_id: str) -> None:
    """In float64 the only loss is the solver's warm start; docs/tasks.md gives the figures."""
    task = make(task_id, dtype=torch.float64)
    assert isinstance(task, MujocoTask)
    worst, kept = 0.0, 0
    for state, action in walk(task, 20, 30):
        obs = task.observe(state)
        rebuilt, possible = task.state_from_obs(obs)
        kept += int(possible.sum())
        assert torch.equal(torch.isfinite(rebuilt).all(dim=-1), torch.ones(20, dtype=torch.bool))
        np.testing.assert_allclose(task.observe(rebuilt)[possible], obs[possible], atol=1e-12)
        error = (task.step(rebuilt, action).obs - task.step(state, action).obs).abs()
        if possible.any():
            worst = max(worst, float(error[possible].max()))
    assert worst < 1e-7, worst
    # a randomly driven walker has a speed at its clip most of the time
    assert kept > (100 if task_id.startswith("Walker2d") else 400)


def test_impossible_observations_are_flagged() -> None:
    hopper = make("Hopper-v5")
    obs = hopper.observe(hopper.reset(4, torch.Generator().manual_seed(0)))
    obs[0, 3] = float("nan")
    obs[1, 7] = -10.0
    obs[2, 0] = 1e20
    state, possible = hopper.state_from_obs(obs)
    assert possible.tolist() == [False, False, False, True]
    assert torch.isfinite(state).all()
    double = make("InvertedDoublePendulum-v5")
    obs = double.observe(double.reset(2, torch.Generator().manual_seed(0)))
    obs[0, 1] += 0.5
    assert double.state_from_obs(obs)[1].tolist() == [False, True]
    ant = make("Ant-v5")
    obs = ant.observe(ant.reset(2, torch.Generator().manual_seed(0)))
    obs[0, 1:5] *= 0.7
    assert ant.state_from_obs(obs)[1].tolist() == [False, True]


@pytest.mark.parametrize("task_id", SMALL)
def test_steps_are_pure_and_the_same_on_any_number_of_threads(task_id: str) -> None:
    task, threaded = make(task_id), make(task_id, threads=3)
    assert isinstance(task, MujocoTask)
    for state, action in walk(task, 17, 5):
        first = task.step(state, action)
        order = torch.randperm(17, generator=torch.Generator().manual_seed(0))
        shuffled = task.step(state[order], action[order])
        other = threaded.step(state, action)
        for a, b, c in zip(first, shuffled, other, strict=True):
            assert torch.equal(a[order], b)
            assert torch.equal(a, c)


def test_the_constructor_explains_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="Hopper-v5"):
        MujocoTask("Hopper-v6")
    with pytest.raises(ConfigError, match="threads must be at least 1"):
        make("Hopper-v5", threads=0)
    with pytest.raises(ConfigError, match=r"allowed: .*threads"):
        make("Hopper-v5", frame_skip=2)
    with pytest.raises(ConfigError, match="qpos must be"):
        MujocoTask("Hopper-v5").state_from_simulator(torch.zeros(1, 5), torch.zeros(1, 6))
