"""ContextGrid-v0: mazes of which every episode draws one, alike in a share that can be chosen. What
an agent learns of one maze is worth as much in another as they have in common.

The setting of "A Study of Global and Episodic Bonuses for Exploration in Contextual MDPs" (arXiv
2306.03236), as small grids whose shortest paths are exact.
"""

import torch
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.tasks.base import Step
from mbrl.tasks.common import check_dtype, discrete_action, uniform
from mbrl.types import Spec

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # row and column of each action
FAR = 1_000_000  # stands for no path


class ContextGrid:
    """A maze of `size` x `size` rooms, one of `contexts`, drawn for each episode; from the upper
    left room to the goal, which pays 1 and ends the episode. Actions go up, down, left, right; a
    wall stops them. 2 size^2 steps.

    A maze is the spanning tree of least weight, so that one path leads from any room to any other.
    The weight of a passage is `common` times a number that all mazes share plus 1 - `common` times
    one of its own; so is the height of a room, the highest of which in the lower right half is the
    goal. With `common` 1 all mazes are one, with 0 they have nothing in common. `maps` is the seed
    of these numbers.

    State: row, column, context. Observation: row, column and context, one-hot, and which of the
    four moves a wall stops. With `show_context` 0 it has no context: for mazes so many that none
    comes again.
    """

    def __init__(
        self,
        *,
        size: int = 7,
        contexts: int = 10,
        common: float = 0.5,
        maps: int = 0,
        show_context: int = 1,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_dtype("ContextGrid-v0", dtype)
        if size < 2 or contexts < 1 or not 0.0 <= common <= 1.0 or show_context not in (0, 1):
            raise ConfigError(
                f"ContextGrid-v0: size is {size} (2 or more), contexts {contexts} (1 or more), "
                f"common {common} (0 to 1), show_context {show_context} (0 or 1)"
            )
        self.show_context = bool(show_context)
        self.device, self.dtype, self.size, self.contexts = (
            torch.device(device),
            dtype,
            size,
            contexts,
        )
        draw = torch.Generator().manual_seed(maps)
        edges = _edges(size)
        mixed = [
            common * torch.rand(count, generator=draw, dtype=torch.float64)
            + (1 - common) * torch.rand((contexts, count), generator=draw, dtype=torch.float64)
            for count in (len(edges), size * size)
        ]
        self.open = torch.stack([_tree(size, edges, w) for w in mixed[0]]).to(self.device)
        room = torch.arange(size * size)
        mixed[1][:, room // size + room % size < size] = -1.0
        self.goal = mixed[1].argmax(1).to(self.device)  # [contexts], row times size plus column
        self.spec = Spec(
            task="ContextGrid-v0",
            obs_dim=2 * size + (contexts if show_context else 0) + 4,
            num_actions=4,
            max_episode_steps=2 * size * size,
            reference_returns=(0.0, 1.0),
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """States [count, 3] in the first room of contexts drawn uniformly."""
        context = (self.contexts * uniform(count, 0.0, 1.0, 1, generator)).floor()
        return torch.cat([torch.zeros(count, 2).to(context), context], 1).to(
            self.device, self.dtype
        )

    def observe(self, state: Tensor) -> Tensor:
        row, column, context = state.long().unbind(1)
        sizes = [(row, self.size), (column, self.size)]
        sizes += [(context, self.contexts)] if self.show_context else []
        parts = [torch.nn.functional.one_hot(index, count) for index, count in sizes]
        walls = ~self.open[context, row * self.size + column]
        return torch.cat([*parts, walls], 1).to(self.dtype)

    def step(self, state: Tensor, action: Tensor) -> Step:
        action = discrete_action("ContextGrid-v0", action, 4)
        row, column, context = state.long().unbind(1)
        free = self.open[context, row * self.size + column, action]
        move = torch.tensor(MOVES, device=state.device)[action] * free[:, None]
        row, column = row + move[:, 0], column + move[:, 1]
        reached = torch.stack([row, column, context], 1).to(state.dtype)
        arrived = row * self.size + column == self.goal[context]
        return Step(reached, self.observe(reached), arrived.to(self.dtype), arrived)

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Possible where the three parts are one-hot and the walls are those of the room; not
        where the context is not shown."""
        if not self.show_context:
            return obs.new_zeros(len(obs), 3), obs.new_zeros(len(obs), dtype=torch.bool)
        sizes = [self.size, self.size, self.contexts]
        parts = obs[:, :-4].split(sizes, 1)
        state = torch.stack([part.argmax(1) for part in parts], 1).to(obs.dtype)
        return state, (self.observe(state) == obs).all(1)

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """At the goal. Raises `ConfigError` where the context is not shown."""
        if not self.show_context:
            raise ConfigError(
                "ContextGrid-v0 with show_context=0: an observation does not say where the goal "
                "is; leave show_context at 1 for models and data"
            )
        state = self.state_from_obs(next_obs)[0].long()
        arrived: Tensor = state[:, 0] * self.size + state[:, 1] == self.goal[state[:, 2]]
        return arrived

    def distances(self) -> Tensor:
        """[contexts, size^2] steps of the shortest path from each room to the goal: sweeps of
        d(s) = 1 + min_a d(s') until nothing changes."""
        rooms = torch.arange(self.size**2, device=self.device)
        step = torch.tensor([r * self.size + c for r, c in MOVES], device=self.device)
        ahead = torch.where(
            self.open, rooms[:, None] + step, rooms[:, None]
        )  # [contexts, rooms, 4]
        distance = torch.full((self.contexts, self.size**2), FAR, device=self.device)
        distance.scatter_(1, self.goal[:, None], 0)
        while True:
            next_ = distance.gather(1, ahead.flatten(1)).view_as(ahead)
            closer = torch.minimum(distance, 1 + next_.amin(2))
            if torch.equal(closer, distance):
                return distance
            distance = closer


def _edges(size: int) -> list[tuple[int, int, int]]:
    """Passages between neighbours: a room, another room, and the action that leads there."""
    edges = []
    for row in range(size):
        for column in range(size):
            room = row * size + column
            edges += [(room, room + size, 1)] if row + 1 < size else []
            edges += [(room, room + 1, 3)] if column + 1 < size else []
    return edges


def _tree(size: int, edges: list[tuple[int, int, int]], weight: Tensor) -> Tensor:
    """[size^2, 4] bool: the moves that are open in the spanning tree of least weight (Kruskal)."""
    part = list(range(size * size))

    def root(room: int) -> int:
        while part[room] != room:
            room = part[room]
        return room

    is_open = [[False] * 4 for _ in range(size * size)]
    for index in weight.argsort().tolist():
        one, other, action = edges[index]
        if root(one) != root(other):
            part[root(one)] = root(other)
            is_open[one][action] = is_open[other][action - 1] = True  # back: 0 and 2
    return torch.tensor(is_open)
