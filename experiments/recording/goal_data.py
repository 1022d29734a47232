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
from mbrl.tasks.push_blocks import BOUND, rounded
from mbrl.tasks.push_planner import push_expert, push_towards

KINDS = ("navigate", "stitch", "explore")
PUSHES = ("navigate", "play")  # those of blocks
NOISE = 0.5  # deviation of the actions around the shortest way
PIECE = 8  # steps of the shortest way, at most, of a short piece
HELD = 10  # steps that a direction is held for
TURN = 20  # steps that a player has for a push of a block to a place


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


def blocks_kind(tier: str) -> Kind:
    """The kind of data that a tier of the family pushblocks, BLOCKS-KIND, is. Raises `ConfigError`
    for another kind."""
    _, _, kind = tier.partition("-")
    if kind not in PUSHES:
        raise unknown_name("kind of goal data", kind, PUSHES)
    return Kind(TimedBehaviour(Player()) if kind == "play" else navigate_blocks)


def navigate_blocks(obs: Tensor, generator: Generator) -> Tensor:
    """The planner towards the goals, with noise."""
    return noised(push_expert(obs), generator)


def noised(action: Tensor, generator: Generator) -> Tensor:
    """With the noise, as whole 64ths: places then stay whole 128ths, which take little room."""
    noise = NOISE * torch.randn(action.shape, generator=generator)
    return rounded((action + noise.to(action)).clamp(-1, 1))


class Player:
    """A block of an episode's own to a place of its own, uniform, for some steps; then another. The
    goals of the task enter the draws alone, which differ between episodes side by side."""

    def __init__(self) -> None:
        self.seed = 0

    def __call__(self, obs: Tensor, generator: Generator, elapsed: int) -> Tensor:
        if elapsed == 0:
            self.seed = int(torch.randint(2**31, (), generator=generator))
        count = (obs.shape[1] - 2) // 4
        point, blocks, goals = obs.double().split([2, 2 * count, 2 * count], 1)
        own = self.seed + ((64 * goals + 1000).long() * torch.tensor([4001, 1] * count)).sum(1)
        turn = torch.full_like(own, elapsed // TURN)
        draws = torch.stack([hashed_uniform(own, 3 * turn + k) for k in range(3)], -1)
        wanted = blocks.unflatten(1, (-1, 2)).clone()
        chosen = (count * draws[:, 0]).long()
        wanted[torch.arange(len(obs)), chosen] = rounded(2 * BOUND * draws[:, 1:] - BOUND)
        action = push_towards(point, blocks.unflatten(1, (-1, 2)), wanted)
        return noised(action.to(obs), generator)
