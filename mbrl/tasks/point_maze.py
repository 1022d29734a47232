"""Point mazes with goals: a point is moved through a maze to a goal that is drawn anew for every
episode. The least number of steps is known from a search over the layout."""

from functools import cache

import numpy as np
import torch
from torch import Tensor

from mbrl.errors import ConfigError, unknown_name
from mbrl.goals import goal_fields
from mbrl.tasks.base import Step
from mbrl.tasks.common import check_dtype, continuous_action, hashed_uniform, uniform
from mbrl.tasks.maze2d import MAZES
from mbrl.types import Spec

# Rows of tiles, # wall. The giant one is OGBench's (ogbench/locomaze/maze.py), the others D4RL's.
LAYOUTS = MAZES | {
    "giant": (
        "################", "#.#......##....#", "#.#.##.#.#..##.#", "#...#..#...#...#",
        "#.###.######.#.#", "#...#...#....#.#", "###.#.#..#.#.###", "#...#..#...#...#",
        "#.#.#.######.#.#", "#.###...#...##.#", "#.....#...#....#", "################",
    ),
}  # fmt: skip
STEPS = {"umaze": 50, "medium": 100, "large": 200, "giant": 300}
SPEED, RADIUS, REACHED = 0.25, 0.25, 0.4  # tiles: longest move a coordinate; from walls; the goal
GRID = 4  # points of the search a tile: one move apart


class PointMaze:
    """PointMaze-medium-v0, -large-, -giant- (and, for tests, -umaze-): a point moves by 0.25 a
    tiles, a in [-1, 1]^2, plus noise of deviation `noise` in each coordinate (a fixed function of a
    seed and the number of the step, both in the state), first along one axis and then along the
    other. It keeps 0.25 away from the walls beside its tile: a move that would come nearer ends
    there, and the rest of it goes on along the wall. (A point that came into a tile sideways may
    stand nearer to a wall; a move towards it then takes the point back to 0.25.)

    Start and goal are the middles of two different free tiles, drawn uniformly. Arriving within
    0.4 of the goal pays 1 and ends the episode, so that the score is the share of starts from which
    the goal is reached. 100, 200 and 300 steps; the longest shortest paths have 26, 55 and 86.

    State: x, y, the goal's x and y, steps, a seed. Observation: x, y and the goal's, from the
    maze's middle, in tiles.
    """

    def __init__(
        self,
        maze: str = "medium",
        *,
        noise: float = 0.0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        name = f"PointMaze-{maze}-v0"
        check_dtype(name, dtype)
        if maze not in LAYOUTS:
            raise unknown_name("maze", maze, LAYOUTS)
        if not 0 <= noise < SPEED:
            raise ConfigError(f"{name}: noise is {noise}, it must lie in [0, {SPEED})")
        self.maze, self.noise = maze, noise
        self.device, self.dtype = torch.device(device), dtype
        self.walls = walls(maze).to(self.device)
        self.free = torch.nonzero(~self.walls).double()
        self.middle = (torch.tensor(self.walls.shape, device=self.device).double() - 1) / 2
        self.spec = Spec(
            task=name,
            action_dim=2,
            action_low=(-1.0, -1.0),
            action_high=(1.0, 1.0),
            max_episode_steps=STEPS[maze],
            reference_returns=(0.0, 1.0),
            task_options={"noise": noise} if noise else {},
            obs_names=("x", "y", "goal_x", "goal_y"),
            **goal_fields(2, (0, 1)),
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """States [count, 6], float64 whatever `dtype` says."""
        draw = uniform(count, 0.0, 1.0, 3, generator).to(self.device)
        tiles = len(self.free)
        start = (tiles * draw[:, 0]).long()
        goal = (start + 1 + ((tiles - 1) * draw[:, 1]).long()) % tiles
        seed = 1 + (2**31 * draw[:, 2]).floor()
        own = torch.stack([torch.zeros_like(seed), seed], 1)
        return torch.cat([self.free[start], self.free[goal], own], 1)

    def observe(self, state: Tensor) -> Tensor:
        """[B, 4] in `dtype`."""
        return (state[:, :4] - self.middle.repeat(2)).to(self.dtype)

    def step(self, state: Tensor, action: Tensor) -> Step:
        action = continuous_action(self.spec.task, action, 2).double().clamp(-1, 1)
        steps, seed = state[:, 4], state[:, 5]
        move = SPEED * action
        if self.noise:
            draws = [hashed_uniform(seed, 2 * steps + k) - 0.5 for k in (0, 1)]
            move = move + self.noise * 12**0.5 * torch.stack(draws, -1)
        place = self.moved(state[:, :2], move)
        reached = torch.cat([place, state[:, 2:4], (steps + 1)[:, None], seed[:, None]], 1)
        arrived = (place - state[:, 2:4]).norm(dim=1) <= REACHED
        return Step(reached, self.observe(reached), arrived.to(self.dtype), arrived)

    def moved(self, place: Tensor, move: Tensor) -> Tensor:
        """Places [B, 2] after `move` [B, 2], below one tile, along x and then along y."""
        x, y = place.unbind(-1)
        x = self._along(x, move[:, 0], self.walls, tile(y))
        y = self._along(y, move[:, 1], self.walls.T, tile(x))
        return torch.stack([x, y], -1)

    def _along(self, value: Tensor, move: Tensor, blocked: Tensor, other: Tensor) -> Tensor:
        """`value` [B] after `move` [B] where the tile's other index is `other` [B] int64."""
        here = tile(value)
        wanted = value + move
        ahead = wanted.minimum(here + 0.5 - RADIUS)
        behind = wanted.maximum(here - 0.5 + RADIUS)
        wanted = torch.where(blocked[here + 1, other] & (move > 0), ahead, wanted)
        return torch.where(blocked[here - 1, other] & (move < 0), behind, wanted)

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Place and goal as observed, steps and seed 0; possible on free tiles of a maze without
        noise, since an observation does not show what noise is to come."""
        shown = obs.double() + self.middle.repeat(2)
        state = torch.cat([shown, torch.zeros_like(shown[:, :2])], 1)
        sizes = torch.tensor(self.walls.shape, device=obs.device)
        inside = torch.isfinite(shown).all(-1)
        index = torch.where(inside[:, None], tile(shown[:, :2].nan_to_num()), 0)
        inside &= ((index > 0) & (index < sizes - 1)).all(-1)
        index = torch.where(inside[:, None], index, 0)
        free = ~self.walls[index[:, 0], index[:, 1]]
        return state, inside & free & (self.noise == 0)

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """At the goal."""
        apart: Tensor = (next_obs[:, :2] - next_obs[:, 2:]).norm(dim=1)
        return apart <= REACHED


def tile(value: Tensor) -> Tensor:
    """Index [...] of the tile that a coordinate [...] lies in; tiles reach 0.5 to either side."""
    return (value + 0.5).floor().long()


@cache
def walls(maze: str) -> Tensor:
    """[X, Y] bool of a layout."""
    return torch.tensor([[place == "#" for place in row] for row in LAYOUTS[maze]])


class Search:
    """Least numbers of steps in a maze without noise, over the places that are whole moves apart:
    from the middle of a tile, moves of -0.25, 0 or 0.25 along each axis lead to these alone.

    `to_goal` [goals, X, Y] float64: from place (x, y) / 4 to within 0.4 of each free tile, in the
    order of `PointMaze.free`; infinite where the place is in a wall.
    """

    def __init__(self, maze: str) -> None:
        self.task = PointMaze(maze, dtype=torch.float64)
        size = [GRID * (n - 1) + 1 for n in self.task.walls.shape]
        self.places = torch.cartesian_prod(*(torch.arange(n).double() / GRID for n in size))
        self.known = ~self.task.walls[tuple(tile(self.places).T)]
        self.size = size
        self.to_goal = self._distances()

    def _distances(self) -> Tensor:
        from scipy.sparse import csgraph, csr_array  # here, as it takes long to import

        start, end = [], []
        index = torch.nonzero(self.known).flatten()
        for move in MOVES:
            reached = self.task.moved(self.places[index], move.expand(len(index), 2))
            start.append(index)
            end.append(self.index(reached))
        rows, columns = torch.cat(start).numpy(), torch.cat(end).numpy()
        count = len(self.places)
        edges = csr_array((np.ones(len(rows)), (columns, rows)), shape=(count, count))
        least = []
        for goal in self.task.free:
            near = ((self.places - goal).norm(dim=1) <= REACHED) & self.known
            ends = torch.nonzero(near).flatten().numpy()
            steps = csgraph.dijkstra(edges, indices=ends, unweighted=True, min_only=True)
            least.append(torch.from_numpy(steps).view(self.size))
        return torch.stack(least)

    def index(self, place: Tensor) -> Tensor:
        """[B] of places [B, 2]: the nearest that is whole moves apart."""
        at = (GRID * place).round().long()
        return at[:, 0] * self.size[1] + at[:, 1]

    def goal_index(self, goal: Tensor) -> Tensor:
        """[B] index among the free tiles of goals [B, 2]."""
        apart = (goal[:, None] - self.task.free[None]).square().sum(-1)
        return apart.argmin(1)

    def steps(self, state: Tensor) -> Tensor:
        """[B] least number of steps from states [B, K] with start and goal in the middle of a tile;
        at least 1."""
        goal = self.goal_index(state[:, 2:4])
        return self.to_goal.flatten(1)[goal, self.index(state[:, :2])].clamp_min(1)


MOVES = SPEED * torch.cartesian_prod(*(torch.arange(-1, 2).double(),) * 2)  # [9, 2]


@cache
def search(maze: str) -> Search:
    """The `Search` of a layout, which takes a second or less."""
    return Search(maze)


def maze_expert(maze: str, obs: Tensor) -> Tensor:
    """Actions [B, 2] at observations [B, 4]: of nine moves the one from whose end fewest steps are
    left; of equal ones that which leads nearest to the goal."""
    known, seen = search(maze), obs.detach().double().cpu()
    place, goal = seen[:, :2] + known.task.middle, seen[:, 2:] + known.task.middle
    which = known.goal_index(goal)
    costs = []
    for move in MOVES:
        reached = known.task.moved(place, move.expand(len(place), 2))
        left = known.to_goal.flatten(1)[which, known.index(reached)]
        costs.append(left.clamp_max(1e6) + 1e-3 * (reached - goal).norm(dim=1))
    best = torch.stack(costs).argmin(0)
    return (MOVES[best] / SPEED).to(obs)
