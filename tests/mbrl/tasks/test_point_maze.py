"""Point mazes against a plain simulation of one point and a plain search, and their expert."""

import math
from collections import deque
from itertools import product

import pytest
import torch

from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.tasks.common import hashed_uniform
from mbrl.tasks.experts import expert
from mbrl.tasks.point_maze import LAYOUTS, PointMaze, maze_expert, search


def along(here: float, move: float, other: float, wall) -> float:
    """One coordinate after a move, where `wall(i, j)` says whether a tile is one."""
    tile, beside = math.floor(here + 0.5), math.floor(other + 0.5)
    reached = here + move
    if move > 0 and wall(tile + 1, beside):
        return min(reached, tile + 0.25)
    if move < 0 and wall(tile - 1, beside):
        return max(reached, tile - 0.25)
    return reached


def moved(maze: str, x: float, y: float, dx: float, dy: float) -> tuple[float, float]:
    rows = LAYOUTS[maze]
    x = along(x, dx, y, lambda i, j: rows[i][j] == "#")
    return x, along(y, dy, x, lambda i, j: rows[j][i] == "#")


@pytest.mark.parametrize(
    ("maze", "noise"),
    [
        ("umaze", 0.05),
        ("large", 0.0),
        *(pytest.param(*p, marks=pytest.mark.long) for p in (("umaze", 0.0), ("large", 0.05))),
    ],
)
def test_steps_against_a_plain_simulation(maze: str, noise: float) -> None:
    task, generator = PointMaze(maze, noise=noise), torch.Generator().manual_seed(1)
    state = task.reset(30, generator)
    rows, arrived = LAYOUTS[maze], 0
    for _ in range(60):
        drift = 2 * torch.rand(30, 2, generator=generator) - 1
        action = (2 * drift + 0.5 * expert(f"PointMaze-{maze}-v0")(task.observe(state))).clamp(
            -2, 2
        )
        step = task.step(state, action)
        for i in range(30):
            x, y, gx, gy, steps, seed = state[i].tolist()
            number = [
                torch.tensor([n], dtype=torch.float64) for n in (seed, 2 * steps, 2 * steps + 1)
            ]
            move = [
                0.25 * min(1.0, max(-1.0, float(action[i, k].double())))
                + noise * math.sqrt(12) * (float(hashed_uniform(number[0], number[k + 1])) - 0.5)
                for k in (0, 1)
            ]
            expected = moved(maze, x, y, *move)
            assert step.state[i, :2].tolist() == pytest.approx(expected, abs=1e-12)
            assert rows[math.floor(expected[0] + 0.5)][math.floor(expected[1] + 0.5)] != "#"
            there = math.dist(expected, (gx, gy)) <= 0.4
            assert bool(step.terminated[i]) == there == bool(step.reward[i])
            arrived += there
        assert torch.equal(step.terminated, task.terminates(action, action, step.obs))
        state = torch.where(step.terminated[:, None], task.reset(30, generator), step.state)
    assert arrived >= 5


def least_steps(maze: str, start: tuple[int, int], goal: tuple[int, int]) -> int:
    """Breadth first over places a quarter of a tile apart, as plain numbers."""
    todo, seen = deque([(float(start[0]), float(start[1]), 0)]), {start}
    while todo:
        x, y, steps = todo.popleft()
        if steps > 0 and math.dist((x, y), goal) <= 0.4:
            return steps
        for dx, dy in product((-0.25, 0.0, 0.25), repeat=2):
            place = moved(maze, x, y, dx, dy)
            if place not in seen:
                seen.add(place)
                todo.append((*place, steps + 1))
    raise AssertionError("no way")


@pytest.mark.parametrize("maze", ["umaze", "medium"])
def test_least_steps_against_a_plain_search(maze: str) -> None:
    task = PointMaze(maze)
    state = task.reset(40, torch.Generator().manual_seed(3))
    for row, steps in zip(state.tolist(), search(maze).steps(state).tolist(), strict=True):
        assert steps == least_steps(maze, (int(row[0]), int(row[1])), (int(row[2]), int(row[3])))


@pytest.mark.parametrize(("maze", "longest"), [("medium", 26), ("large", 55), ("giant", 86)])
def test_the_expert_takes_the_least_number_of_steps(maze: str, longest: int) -> None:
    task = make(f"PointMaze-{maze}-v0")
    state = task.reset(3000, torch.Generator().manual_seed(0))
    least = search(maze).steps(state)
    assert float(least.max()) == longest < task.spec.max_episode_steps / 2
    taken, going = torch.zeros(3000), torch.ones(3000, dtype=torch.bool)
    for _ in range(longest):
        step = task.step(state, maze_expert(maze, task.observe(state)))
        taken, going, state = taken + going, going & ~step.terminated, step.state
    assert not going.any() and torch.equal(taken.double(), least)


def test_starts_goals_and_states() -> None:
    task = make("PointMaze-medium-v0")
    state = task.reset(5000, torch.Generator().manual_seed(0))
    assert (state[:, :2] != state[:, 2:4]).any(1).all()
    for places in (state[:, :2], state[:, 2:4]):
        tiles, counts = places.unique(dim=0, return_counts=True)
        assert len(tiles) == 26 and counts.min() > 5000 / 26 * 0.7
    again, possible = task.state_from_obs(task.observe(state))
    assert possible.all() and torch.equal(again[:, :4], state[:, :4])
    outside = task.observe(state[:4]) + torch.tensor(
        [[0.0] * 4, [50, 0, 0, 0], [torch.nan] * 4, [-50, 0, 0, 0]]
    )
    assert task.state_from_obs(outside)[1].tolist() == [True, False, False, False]
    assert not make("PointMaze-medium-v0", noise=0.1).state_from_obs(task.observe(state))[1].any()
    assert task.spec.goal == (2, 3) and task.spec.achieved == (0, 1)


def test_noise_has_its_deviation() -> None:
    """Uniform, so that it reaches sqrt(3) of its deviations; moves that walls cut are left out."""
    task = make("PointMaze-umaze-v0", noise=0.1)
    state = task.reset(1, torch.Generator().manual_seed(0)).repeat(20_000, 1)
    state[:, 5] = torch.arange(20_000)
    rest = torch.zeros(20_000, 2)
    moved = task.step(state, rest).state[:, :2] - state[:, :2]
    assert float(moved.std()) == pytest.approx(0.1, rel=0.02)
    assert 0.99 * 0.1 * 3**0.5 < float(moved.abs().max()) <= 0.1 * 3**0.5
    assert torch.equal(task.step(state, rest).state, task.step(state, rest).state)
    assert make("PointMaze-umaze-v0").step(state, rest).state[:, :2].equal(state[:, :2])


def test_wrong_options() -> None:
    with pytest.raises(ConfigError, match="maze"):
        PointMaze("mediun")
    with pytest.raises(ConfigError, match=r"noise is 0.5, it must lie in \[0, 0.25\)"):
        make("PointMaze-medium-v0", noise=0.5)
