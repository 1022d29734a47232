"""A grid with goals for the study of imagined rows: the instruction stands in the observation, its
levels are disjoint, and the shortest paths are exact.

Cells are those of `ROWS`; the four actions move one cell, and a wall stops them. The observation is
the cell and the goal, each as a row and a column token (one-hot). Reaching the goal pays 1 and ends
the episode. Goals of the level `hard` are all those whose row token no other level has; the others
are split into `train` and `easy`, so that both tokens of every easy goal occur in train.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.types import Dataset, Provenance, Spec, Transitions

ROWS = (
    "........",
    "..####..",
    ".....#..",
    ".###.#..",
    "...#....",
    ".#.#.###",
    ".#......",
    "........",
)
SIZE = len(ROWS)
HARD_TOKENS = (2, 6)  # rows whose token no real row has
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
LIMIT = 40  # steps of an episode
LEVELS = ("train", "easy", "hard")
FAR = 10_000  # stands for no path


@dataclass(frozen=True)
class Rates:
    """Probabilities that an imagined step goes to an arbitrary cell by an arbitrary action
    (`teleport`), that the step after one is left out (`missing`), and that the instruction of an
    imagined episode is another goal of its level (`label`)."""

    teleport: float = 0.0
    missing: float = 0.0
    label: float = 0.0


class GoalGrid:
    """The grid: `cells` [C, 2] row and column of each free cell, `moves` [C, 4] the cell that each
    action leads to, `distance` [C, C] steps of the shortest path from the first to the second."""

    def __init__(self) -> None:
        free = [(r, c) for r in range(SIZE) for c in range(SIZE) if ROWS[r][c] == "."]
        number = {cell: i for i, cell in enumerate(free)}
        self.cells = torch.tensor(free)
        self.moves = torch.tensor(
            [[number.get((r + dr, c + dc), i) for dr, dc in MOVES] for i, (r, c) in enumerate(free)]
        )
        self.distance = self._distances()
        self.levels = self._levels()
        self.spec = Spec(
            task="GoalGrid", obs_dim=4 * SIZE, action_dim=1, num_actions=4, max_episode_steps=LIMIT
        )

    def _distances(self) -> Tensor:
        """Sweeps of d(s, g) = 1 + min_a d(s', g) until nothing changes: exact after as many as the
        longest path."""
        count = len(self.cells)
        distance = torch.full((count, count), FAR)
        distance.fill_diagonal_(0)
        while True:
            closer = torch.minimum(distance, 1 + distance[self.moves].amin(1))
            if bool((closer == distance).all()):
                return distance
            distance = closer

    def _levels(self) -> dict[str, Tensor]:
        """The goals of each level, fixed once for all seeds."""
        hard = torch.isin(self.cells[:, 0], torch.tensor(HARD_TOKENS))
        rest = torch.nonzero(~hard).flatten()
        order = rest[torch.randperm(len(rest), generator=torch.Generator().manual_seed(0))]
        train = order[: (len(order) + 1) // 2]
        known = [set(self.cells[train, axis].tolist()) for axis in (0, 1)]
        if any(set(self.cells[rest, axis].tolist()) - known[axis] for axis in (0, 1)):
            raise AssertionError("a token of an easy goal does not occur in train")
        return {"train": train, "easy": order[len(train) :], "hard": torch.nonzero(hard).flatten()}

    def observe(self, cell: Tensor, goal: Tensor) -> Tensor:
        """[B, 4 SIZE]: tokens of the cell's row and column, of the goal's row and column."""
        numbers = torch.cat([self.cells[cell], self.cells[goal]], -1)  # [B, 4]
        return torch.nn.functional.one_hot(numbers, SIZE).flatten(1).float()

    def optimal(self, cell: Tensor, goal: Tensor, generator: torch.Generator) -> Tensor:
        """One of the actions [B] on a shortest path, each as likely."""
        after = self.distance[self.moves[cell], goal[:, None]]  # [B, 4]
        best = (after == after.amin(1, keepdim=True)).float()
        return torch.multinomial(best, 1, generator=generator).flatten()

    def pairs(self, level: str, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """`count` starts and goals of the level, never equal."""
        goals = self.levels[level]
        goal = goals[torch.randint(len(goals), (count,), generator=generator)]
        start = torch.randint(len(self.cells) - 1, (count,), generator=generator)
        return start + (start >= goal).long(), goal


def record(
    grid: GoalGrid,
    levels: tuple[str, ...],
    episodes: int,
    noise: float,
    generator: torch.Generator,
    rates: Rates | None = None,
) -> tuple[Dataset, Tensor]:
    """`episodes` episodes towards goals of each of the `levels`, by shortest paths with a share
    `noise` of uniform actions; imagined where there are `rates`, and then wrong as these say. Also
    which rows [N] did not happen so in the grid, or are rewarded for a goal that they did not
    reach."""
    parts = [
        _episode(grid, level, *pair, noise, generator, rates or Rates())
        for level in levels
        for pair in zip(*grid.pairs(level, episodes, generator), strict=True)
    ]
    rows = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    wrong = rows.pop("wrong")
    card = "imagined rows of the grid" if rates else "rows of the grid"
    return Dataset(Transitions(**rows), grid.spec, Provenance(card=card)), wrong


def _episode(
    grid: GoalGrid,
    level: str,
    start: Tensor,
    goal: Tensor,
    noise: float,
    generator: torch.Generator,
    rates: Rates,
) -> dict[str, Tensor]:
    def happens(rate: float) -> bool:
        return float(torch.rand((), generator=generator)) < rate

    def uniform(count: int) -> Tensor:
        return torch.randint(count, (1,), generator=generator)

    cell, goal = start[None], goal[None]
    others = grid.levels[level][grid.levels[level] != goal]
    mislabelled = happens(rates.label)
    label = others[uniform(len(others))] if mislabelled else goal
    steps: list[tuple[Tensor, Tensor, Tensor, bool]] = []
    while int(cell) != int(goal) and len(steps) < LIMIT:
        teleported = happens(rates.teleport)
        action = grid.optimal(cell, goal, generator)
        if happens(noise) or teleported:
            action = uniform(4)
        after = uniform(len(grid.cells)) if teleported else grid.moves[cell, action]
        if int(after) != int(goal) and happens(rates.missing):
            after = grid.moves[after, grid.optimal(after, goal, generator)]
        wrong = int(after) != int(grid.moves[cell, action])
        steps.append((cell, action, after, wrong))
        cell = after
    cells, actions, reached, wrongs = zip(*steps, strict=True)
    before, after = torch.cat(cells), torch.cat(reached)
    target = label.expand(len(steps))
    done = after == goal
    last = torch.arange(len(steps)) == len(steps) - 1
    return {
        "obs": grid.observe(before, target),
        "action": torch.cat(actions),
        "reward": done.float(),
        "next_obs": grid.observe(after, target),
        "terminated": done,
        "truncated": last & ~done,
        "wrong": torch.tensor(wrongs) | (done & mislabelled),
    }


@torch.no_grad()
def success(grid: GoalGrid, policy: torch.nn.Module, level: str, count: int) -> tuple[float, float]:
    """Per cent of `count` fixed starts and goals of the level from which the greedy `policy`
    reaches the goal within `LIMIT` steps, and the mean over all of shortest over taken steps, in
    per cent (0 where the goal is not reached)."""
    cell, goal = grid.pairs(level, count, torch.Generator().manual_seed(7))
    shortest = grid.distance[cell, goal].double()
    taken = torch.full((count,), torch.inf, dtype=torch.float64)
    for t in range(1, LIMIT + 1):
        cell = torch.where(cell == goal, cell, grid.moves[cell, policy(grid.observe(cell, goal))])
        taken = torch.where((cell == goal) & taken.isinf(), float(t), taken)
    return 100 * float((cell == goal).double().mean()), 100 * float((shortest / taken).mean())
