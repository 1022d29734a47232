"""Blocks on a plane that a point pushes to their goals: manipulation without a simulator of
physics. Contact is quasi-static and exact, so equal pushes lead to equal places."""

from collections.abc import Callable

import torch
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.goals import goal_fields
from mbrl.tasks.base import Step
from mbrl.tasks.common import check_dtype, continuous_action, uniform
from mbrl.types import Spec

SPEED = 0.5  # longest move of the point a coordinate; widths of a block
HALF = 0.5  # from a block's middle to its sides
BOUND = 2.0  # how far a block's middle can be from the plane's, a coordinate
REACH = 3.0  # how far the point can be: it gets behind every block
REACHED = 0.4  # between a block and its goal
APART = 1.25  # between starts of blocks, and between their goals, in the wider coordinate
LIMIT = 50  # steps a block
MOST = 3  # blocks
TOUCH = 1e-5  # what rounding of observations may take from a distance


class PushBlocks:
    """PushBlocks-1-v0, -2-, -3-: a point moves by 0.5 a, a in [-1, 1]^2, first along x and then
    along y, and pushes what is in its way: blocks of width 1, which do not turn, push one another
    and stop at the edge of a square, 2 from its middle to theirs. The point itself can go as far as
    3, so that no block is ever out of reach. Nothing slides on after a push.

    Blocks start, and have their goals, at middles uniform in the square and at least 1.25 apart in
    one of the coordinates; the point starts outside all blocks. All blocks within 0.4 of their
    goals pay 1 and end the episode, so that the score is the share of solved episodes. 50 steps a
    block.

    State: the point's x and y, the blocks', their goals' (2 + 4 blocks numbers). Observation: the
    same.
    """

    def __init__(
        self,
        blocks: int = 2,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        name = f"PushBlocks-{blocks}-v0"
        check_dtype(name, dtype)
        if not 1 <= blocks <= MOST:
            raise ConfigError(f"{name}: blocks is {blocks}, it must be 1 to {MOST}")
        self.blocks, self.device, self.dtype = blocks, torch.device(device), dtype
        places = [f"block{i}_{axis}" for i in range(blocks) for axis in "xy"]
        self.spec = Spec(
            task=name,
            action_dim=2,
            action_low=(-1.0, -1.0),
            action_high=(1.0, 1.0),
            max_episode_steps=LIMIT * blocks,
            reference_returns=(0.0, 1.0),
            obs_names=("x", "y", *places, *(f"goal_{p}" for p in places)),
            **goal_fields(2 + 2 * blocks, tuple(range(2, 2 + 2 * blocks))),
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """States [count, 2 + 4 blocks], float64 whatever `dtype` says: whole 64ths."""
        blocks, goals = (self._apart(count, generator) for _ in range(2))
        point = self._outside(blocks, generator)
        state = torch.cat([point, blocks.flatten(1), goals.flatten(1)], 1)
        return state.to(self.device)

    def _apart(self, count: int, generator: torch.Generator) -> Tensor:
        """Middles [count, N, 2] of blocks, drawn anew together where two are too near."""

        def draw() -> Tensor:
            values = uniform(count, -BOUND, BOUND, 2 * self.blocks, generator)
            return rounded(values).view(count, self.blocks, 2)

        return repeated(draw, lambda middles: ~_near(middles, APART))

    def _outside(self, blocks: Tensor, generator: torch.Generator) -> Tensor:
        """Points [count, 2] that lie in none of `blocks` [count, N, 2]."""

        def draw() -> Tensor:
            return rounded(uniform(len(blocks), -REACH, REACH, 2, generator))

        middles = blocks.to(generator.device)
        return repeated(draw, lambda p: ((p[:, None] - middles).abs().amax(-1) >= HALF).all(1))

    def observe(self, state: Tensor) -> Tensor:
        """[B, 2 + 4 blocks] in `dtype`."""
        return state.to(self.dtype)

    def step(self, state: Tensor, action: Tensor) -> Step:
        action = continuous_action(self.spec.task, action, 2).double().clamp(-1, 1)
        point, blocks, goals = self.parts(state)
        point, blocks = moved(point, blocks, SPEED * action)
        reached = torch.cat([point, blocks.flatten(1), goals.flatten(1)], 1)
        solved = _solved(blocks, goals)
        return Step(reached, self.observe(reached), solved.to(self.dtype), solved)

    def parts(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The point [B, 2], blocks [B, N, 2] and goals [B, N, 2] of states or observations."""
        point, blocks, goals = state.split([2, 2 * self.blocks, 2 * self.blocks], 1)
        return point, blocks.unflatten(1, (-1, 2)), goals.unflatten(1, (-1, 2))

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Possible where all places are within their bounds, blocks do not overlap and the point is
        in none."""
        state = obs.double()
        point, blocks, _ = self.parts(state.nan_to_num(torch.inf))
        possible = torch.isfinite(obs).all(1) & (point.abs() <= REACH + TOUCH).all(1)
        possible &= (blocks.abs() <= BOUND + TOUCH).flatten(1).all(1)
        possible &= ((point[:, None] - blocks).abs().amax(-1) >= HALF - TOUCH).all(1)
        return state, possible & ~_near(blocks, 2 * HALF - TOUCH)

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """All blocks at their goals."""
        _, blocks, goals = self.parts(next_obs)
        return _solved(blocks, goals)


def rounded(values: Tensor) -> Tensor:
    """The nearest whole 64ths: sums of such numbers are exact in float32."""
    return (64 * values).round() / 64


def repeated(draw: Callable[[], Tensor], accepted: Callable[[Tensor], Tensor]) -> Tensor:
    """Rows of `draw()` [count, ...], each drawn until `accepted` [count] bool takes it."""
    values = draw()
    good = accepted(values)
    while not bool(good.all()):
        new = draw()
        values = torch.where(good.view(-1, *[1] * (values.ndim - 1)), values, new)
        good = accepted(values)
    return values


def _near(middles: Tensor, least: float) -> Tensor:
    """[B] bool: whether two of `middles` [B, N, 2] are less than `least` apart in both
    coordinates."""
    gaps = (middles[:, :, None] - middles[:, None]).abs().amax(-1)
    alone = torch.eye(gaps.shape[1], dtype=torch.bool, device=gaps.device)
    return (gaps.masked_fill(alone, torch.inf) < least).flatten(1).any(1)


def _solved(blocks: Tensor, goals: Tensor) -> Tensor:
    """[B] bool."""
    solved: Tensor = ((blocks - goals).norm(dim=-1) <= REACHED).all(1)
    return solved


def moved(point: Tensor, blocks: Tensor, move: Tensor) -> tuple[Tensor, Tensor]:
    """The point [B, 2] and blocks [B, N, 2] after `move` [B, 2], along x and then along y."""
    for axis in (0, 1):
        sign = torch.where(move[:, axis] < 0, -1.0, 1.0).to(point)
        step = move[:, axis].abs()
        mine, others = sign * point[:, axis], sign[:, None] * blocks[..., axis]
        across = 1 - axis
        aside = (blocks[..., across] - point[:, None, across]).abs()
        beside = (blocks[:, :, None, across] - blocks[:, None, :, across]).abs()
        mine, others = _pushed(mine, others, aside, beside, step)
        point = with_axis(point, axis, sign * mine)
        blocks = with_axis(blocks, axis, sign[:, None] * others)
    return point, blocks


def _pushed(
    point: Tensor, blocks: Tensor, aside: Tensor, beside: Tensor, step: Tensor
) -> tuple[Tensor, Tensor]:
    """Coordinates along the move of the point [B] and of blocks [B, N] after the point went
    forward by `step` [B] at most. `aside` [B, N] and `beside` [B, N, N] are distances across the
    move, of the blocks from the point and from one another."""
    count = blocks.shape[1]
    touches = (aside < HALF - TOUCH) & (point[:, None] <= blocks - HALF + TOUCH)
    ahead = (beside < 2 * HALF - TOUCH) & (blocks[:, :, None] < blocks[:, None])  # j before i
    # How far each can go: a block behind a row of blocks stops with the last of them.
    most = torch.full_like(blocks, BOUND)
    for _ in range(count - 1):
        behind = torch.where(ahead, most[:, None] - 2 * HALF, BOUND).amin(2)
        most = torch.minimum(most, behind)
    limit = torch.where(touches, most - HALF, REACH).amin(1)
    # Nothing goes back, also where rounding has left it beyond its limit.
    point = torch.maximum(point, torch.minimum(point + step, limit))
    after = torch.where(touches, torch.maximum(blocks, point[:, None] + HALF), blocks)
    for _ in range(count - 1):
        pushed = torch.where(ahead, after[:, :, None] + 2 * HALF, -torch.inf).amax(1)
        after = torch.maximum(after, pushed)
    return point, after


def with_axis(values: Tensor, axis: int, new: Tensor) -> Tensor:
    """`values` [..., 2] with `new` [...] in the coordinate `axis`."""
    other = values[..., 1 - axis]
    return torch.stack([new, other] if axis == 0 else [other, new], -1)
