"""Maze2D against the closed form of a free ball, gymnasium-robotics' PointMaze, and the returns of
random actions that D4RL prints."""

import math

import gymnasium
import numpy as np
import pytest

from mbrl.data.cards import find_card
from mbrl.errors import ConfigError
from mbrl.tasks import make, make_for
from mbrl.tasks.maze2d import FASTEST, MAZES, STEPS, Maze2D

SETS = [(maze, reward) for maze in STEPS for reward in ("sparse", "dense")]


def test_a_free_ball_follows_its_closed_form() -> None:
    """Speeds of Euler's step with damping taken implicitly, then positions."""
    env = Maze2D("medium")
    env.reset(seed=0)
    mass, step = 1000 * 4 / 3 * math.pi * 0.1**3, 0.01
    rng = np.random.default_rng(0)
    for _ in range(200):
        at, speed = np.array([3.0, 3.0]) + rng.uniform(-0.2, 0.2, 2), rng.uniform(-7, 7, 2)
        env.data.qpos[:], env.data.qvel[:] = at, speed
        action = rng.uniform(-1.5, 1.5, 2)
        obs, *_ = env.step(action)
        before = np.clip(speed, -FASTEST, FASTEST)
        after = (before + step * 100 * np.clip(action, -1, 1) / mass) / (1 + step / mass)
        assert obs[2:] == pytest.approx(after, abs=1e-12)
        assert obs[:2] == pytest.approx(at + step * after, abs=1e-12)


def test_a_free_ball_moves_as_in_gymnasium_robotics() -> None:
    pytest.importorskip("gymnasium_robotics")
    theirs = gymnasium.make("PointMaze_Open-v3", disable_env_checker=True).unwrapped
    theirs.reset(seed=0)
    ours = Maze2D("medium")
    ours.reset(seed=0)
    rng = np.random.default_rng(1)
    for _ in range(50):
        speed, action = rng.uniform(-4, 4, 2), rng.uniform(-1, 1, 2).astype(np.float32)
        theirs.point_env.set_state(np.zeros(2), speed)
        ours.data.qpos[:], ours.data.qvel[:] = (5.0, 4.0), speed
        there, *_ = theirs.step(action)
        here, *_ = ours.step(action)
        assert here[2:] == pytest.approx(there["observation"][2:], abs=1e-9)
        assert here[:2] - (5.0, 4.0) == pytest.approx(there["observation"][:2], abs=1e-9)


@pytest.mark.parametrize("maze", MAZES)
def test_walls_hold_and_free_tiles_are_connected(maze: str) -> None:
    """Random forces never bring the ball into a wall; every free tile leads to the goal."""
    rows = MAZES[maze]
    assert len({len(row) for row in rows}) == 1 and sum(row.count("G") for row in rows) == 1
    assert set(rows[0]) == set(rows[-1]) == {"#"} == {row[0] for row in rows}
    env = Maze2D(maze)
    free = {tuple(map(int, tile)) for tile in env.starts}
    reached, border = set(), [tuple(map(int, env.goal))]
    while border:
        x, y = border.pop()
        reached.add((x, y))
        near = {(x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)}
        border += [tile for tile in near & free if tile not in reached]
    assert reached == free
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    for _ in range(1000):  # the ball is 0.2 wide, and its coordinates are 0.2 off those of tiles
        obs, *_ = env.step(env.action_space.sample())
        tile = tuple(np.round(obs[:2] + 0.2).astype(int))
        assert tile in free


@pytest.mark.parametrize(("maze", "reward"), SETS)
def test_cards_name_it_with_their_sizes_and_limits(maze: str, reward: str) -> None:
    name = f"maze2d-{maze}{'-dense' * (reward == 'dense')}"
    said = find_card("d4rl").environments[name].spec()
    task = make_for(said)
    assert (task.spec.obs_dim, task.spec.action_dim) == (4, 2) == (said.obs_dim, said.action_dim)
    assert task.spec.max_episode_steps == said.max_episode_steps == STEPS[maze]


def test_rewards_are_those_of_the_distance() -> None:
    sparse, dense = Maze2D("umaze", "sparse"), Maze2D("umaze", "dense")
    for x, wanted in ((1.3, 1.0), (1.0, 1.0), (3.0, 0.0)):
        for env in (sparse, dense):
            env.reset(seed=0)
            env.data.qpos[:], env.data.qvel[:] = (x, 1.0), 0.0
        obs, reward, terminated, truncated, info = sparse.step(np.zeros(2))
        assert reward == wanted == float(info["success"]) and not terminated and not truncated
        distance = math.dist(obs[:2], (1.0, 1.0))
        assert dense.step(np.zeros(2))[1] == pytest.approx(math.exp(-distance))


@pytest.mark.long
@pytest.mark.parametrize(("maze", "reward"), SETS)
def test_random_actions_return_what_d4rl_prints(maze: str, reward: str) -> None:
    """D4RL's lower reference, itself a mean of some 100 episodes: within four standard errors."""
    name = f"maze2d-{maze}{'-dense' * (reward == 'dense')}"
    low = find_card("d4rl").environments[name].reference_returns[0]
    env = Maze2D(maze, reward)
    env.action_space.seed(0)
    returns = []
    for episode in range(100):
        env.reset(seed=0 if episode == 0 else None)
        steps = (env.step(env.action_space.sample()) for _ in range(STEPS[maze]))
        returns.append(sum(step[1] for step in steps))
    error = float(np.std(returns)) * (2 / 100) ** 0.5
    assert abs(float(np.mean(returns)) - low) < 4 * error


def test_other_mazes_and_rewards_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown maze 'umzae': did you mean 'umaze'"):
        Maze2D("umzae")
    with pytest.raises(ConfigError, match="allowed: sparse, dense"):
        Maze2D("umaze", "shaped")
    assert make("mbrl.tasks.maze2d:Maze2D,maze=large").spec.max_episode_steps == 800
