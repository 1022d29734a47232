"""Data to learn to reach goals from, of three kinds, as OGBench (arXiv 2410.20092) has them: whole
ways to far goals, short pieces that must be joined, and wandering."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from experiments.recording.behaviour import Behaviour, TimedBehaviour
from mbrl.errors import unknown_name
from mbrl.tasks.common import hashed_uniform
from mbrl.tasks.point_maze import maze_expert, search

KINDS = ("navigate", "stitch", "explore")
NOISE = 0.5  # deviation of the actions around the shortest way
PIECE = 8  # steps of the shortest way, at most, of a short piece
HELD = 10  # steps that a direction is held for


@dataclass(frozen=True)
class Kind:
    """Who acts, and which start observations [B, S] are kept (None: all)."""

    behaviour: Behaviour | TimedBehaviour
    start: Callable[[Tensor], Tensor] | None = None


def maze_kind(tier: str) -> Kind:
    """The kind of data that a tier of the family pointmaze, MAZE-KIND, is. Raises `ConfigError` for
    another kind."""
    maze, _, kind = tier.partition("-")
    if kind not in KINDS:
        raise unknown_name("kind of goal data", kind, KINDS)
    if kind == "explore":
        return Kind(TimedBehaviour(Wandering()))

    def navigate(obs: Tensor, generator: Generator) -> Tensor:
        noise = NOISE * torch.randn(len(obs), 2, generator=generator)
        return (maze_expert(maze, obs) + noise.to(obs)).clamp(-1, 1)

    def near(obs: Tensor) -> Tensor:
        known = search(maze)
        state = obs.double() + known.task.middle.repeat(2)
        return known.steps(state) <= PIECE

    return Kind(navigate, near if kind == "stitch" else None)


class Wandering:
    """Full speed along each axis in a direction that is uniform on a square's edge-to-edge range,
    held for some steps. Episodes side by side have directions of their own: they differ in their
    goals, which enter the draws."""

    def __init__(self) -> None:
        self.seed = 0

    def __call__(self, obs: Tensor, generator: Generator, elapsed: int) -> Tensor:
        if elapsed == 0:
            self.seed = int(torch.randint(2**31, (), generator=generator))
        goal = (8 * obs[:, 2:].double()).round().long() + 1000
        own = self.seed + 4001 * goal[:, 0] + goal[:, 1]
        turn = torch.full_like(own, elapsed // HELD)
        draws = torch.stack([hashed_uniform(own, 2 * turn + k) for k in (0, 1)], -1)
        noise = torch.randn(len(obs), 2, generator=generator)
        return (2 * draws.to(obs) - 1 + 0.1 * noise.to(obs)).clamp(-1, 1)
