"""A planner for blocks on a plane: which block to push along which axis next, and a way for the
point to where it is pushed from."""

from functools import cache

import torch
from torch import Tensor

from mbrl.tasks.push_blocks import BOUND, HALF, REACH, SPEED, TOUCH, moved, with_axis

CELL = 0.5  # between places of the search; a block is wider, so none lies between two neighbours
SIZE = round(2 * REACH / CELL) + 1  # places along an axis
FAR = 1e4  # stands for no way
TIER = 1000.0  # more than any way
DONE = 0.25  # of an error along an axis that is left: both together are within 0.4


def push_expert(obs: Tensor) -> Tensor:
    """Actions [B, 2] at observations [B, 2 + 4 N] that bring all blocks to their goals: of the
    pushes of a block along an axis that are to be made, the one whose place to push from is reached
    in the fewest steps, and a way there around all blocks.

    First come pushes that meet no other block and put none in the way of a later one, then those
    that move a block aside, then the others. It looks one push ahead, so a few arrangements of
    several blocks keep it busy to the end.
    """
    count = (obs.shape[1] - 2) // 4
    point, blocks, goals = obs.double().split([2, 2 * count, 2 * count], 1)
    return push_towards(point, blocks.unflatten(1, (-1, 2)), goals.unflatten(1, (-1, 2))).to(obs)


def push_towards(point: Tensor, blocks: Tensor, goals: Tensor) -> Tensor:
    """Actions [B, 2] of the planner for the point [B, 2] and blocks, goals [B, N, 2]."""
    free = _free(blocks)
    from_point = _distances(free, _around(point, blocks))
    best = torch.full_like(point[:, 0], torch.inf)
    push, ends = torch.zeros_like(point), torch.zeros_like(free)
    for block, axis, wanted, tier in _pushes(blocks, goals):
        cost, chosen, behind = _push(point, blocks, wanted, free, block, axis, from_point)
        cost = cost + TIER * tier
        better = (cost < best)[:, None]
        best = torch.minimum(best, cost)
        push, ends = torch.where(better, chosen, push), torch.where(better, behind, ends)
    waits = torch.isnan(push)
    way = _way(point, blocks, _distances(free, ends)) if bool(waits.any()) else push
    return (torch.where(waits, way, push) / SPEED).clamp(-1, 1)


def _pushes(blocks: Tensor, goals: Tensor) -> list[tuple[int, int, Tensor, Tensor]]:
    """Block, axis, signed length [B] and rank [B] of pushes, 0 for the first to be made."""
    error = goals - blocks
    direct = [(i, axis) for i in range(blocks.shape[1]) for axis in (0, 1)]
    meets = {push: _meets(blocks, error, *push) for push in direct}
    pushes = []
    for block, axis in direct:
        after = blocks.clone()
        after[:, block, axis] = goals[:, block, axis]
        in_the_way = torch.zeros_like(meets[block, axis])
        for other in range(blocks.shape[1]):
            if other != block:
                pair = after[:, [block, other]], (goals - after)[:, [block, other]]
                for which, along in ((0, 1 - axis), (1, 0), (1, 1)):
                    in_the_way = in_the_way | _meets(*pair, which, along)
        tier = torch.where(in_the_way, 2.0, 0.0)
        tier = torch.where(meets[block, axis], 3.0, tier)
        pushes.append((block, axis, error[:, block, axis], tier))
        for other_block in range(blocks.shape[1]):
            if other_block == block:
                continue
            # This block or the other one goes aside, just as far as lets them pass.
            apart = (blocks[:, block] - blocks[:, other_block])[:, 1 - axis]
            aside = torch.where(apart < 0, -1.0, 1.0).to(apart) * (2 * HALF + DONE) - apart
            hit = _meets(blocks[:, [block, other_block]], error[:, [block, other_block]], 0, axis)
            for which, length in ((block, aside), (other_block, -aside)):
                reached = blocks[:, which, 1 - axis] + length
                possible = hit & (reached.abs() <= BOUND)
                length = torch.where(possible, length, 0.0)
                pushes.append((which, 1 - axis, length, torch.ones_like(tier)))
    return pushes


def _push(
    point: Tensor,
    blocks: Tensor,
    wanted: Tensor,
    free: Tensor,
    block: int,
    axis: int,
    from_point: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Steps [B] to the place from which `block` is pushed by `wanted` [B] along `axis`, infinite
    where it need not or cannot be; the move [B, 2] of the push, NaN where the point is not there;
    and where it is made from [B, 169] bool."""
    middle = blocks[:, block]
    sign = torch.where(wanted < 0, -1.0, 1.0).to(point)
    behind = sign * (middle[:, axis] - point[:, axis])
    aside = (point - middle)[:, 1 - axis]
    ready = (behind >= HALF - TOUCH) & (behind <= HALF + 1) & (aside.abs() <= 0.4)
    push = with_axis(torch.zeros_like(point), axis, wanted + sign * (behind - HALF))
    push = with_axis(push, 1 - axis, -0.5 * aside)  # to the middle of the side
    places = _places(point)
    to_place = sign[:, None] * (middle[:, None, axis] - places[..., axis])
    across = (places - middle[:, None])[..., 1 - axis].abs()
    ends = free & (to_place >= HALF) & (to_place < HALF + CELL + TOUCH) & (across <= 0.4)
    steps = torch.where(ends, from_point, torch.inf).amin(1)
    contact = with_axis(middle, axis, middle[:, axis] - sign * HALF)
    trial = with_axis(torch.zeros_like(point), axis, sign * DONE)
    jammed = moved(contact, blocks, trial)[1][:, block, axis] == middle[:, axis]
    cost = torch.where(ready, 0.0, 1.0 + steps)
    cost = torch.where((wanted.abs() > DONE) & ~jammed, cost, torch.inf)
    return cost, torch.where(ready[:, None], push, torch.nan), ends


def _meets(blocks: Tensor, error: Tensor, block: int, axis: int) -> Tensor:
    """[B] bool: whether a push of `block` that is to be made meets another one before its end."""
    gap = blocks - blocks[:, block, None]
    wanted = error[:, block, axis, None]
    along = gap[..., axis] * torch.where(wanted < 0, -1.0, 1.0)
    near = (along > 0) & (along < wanted.abs() + 2 * HALF - TOUCH) & (wanted.abs() > DONE)
    meets: Tensor = (near & (gap[..., 1 - axis].abs() < 2 * HALF - TOUCH)).any(1)
    return meets


@cache
def _grid() -> Tensor:
    """[169, 2] places of the search, row after row."""
    line = torch.arange(-REACH, REACH + CELL / 2, CELL, dtype=torch.float64)
    return torch.cartesian_prod(line, line)


def _places(like: Tensor) -> Tensor:
    return _grid().to(like)[None]


def _free(blocks: Tensor) -> Tensor:
    """[B, 169] bool: the places that lie in no block."""
    apart = (_places(blocks)[:, :, None] - blocks[:, None]).abs().amax(-1)
    return (apart >= HALF - TOUCH).all(2)


def _near_places(point: Tensor, blocks: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of the places that a move from the point [B, 2] ends at: their number [B] int64, where they
    are [B, 2], and whether no block is in between [B] bool."""
    at, result = (point + REACH) / CELL, []
    for x in (at[:, 0].ceil() - 1, at[:, 0].round(), at[:, 0].floor() + 1):
        for y in (at[:, 1].ceil() - 1, at[:, 1].round(), at[:, 1].floor() + 1):
            index = torch.stack([x, y], -1).clamp(0, SIZE - 1)
            place = CELL * index - REACH
            number = (index[:, 0] * SIZE + index[:, 1]).long()
            result.append((number, place, _clear(point, place, blocks)))
    return result


def _around(point: Tensor, blocks: Tensor) -> Tensor:
    """[B, 169] bool: the places that a move from the point ends at."""
    marks = torch.zeros(len(point), SIZE * SIZE, dtype=torch.bool, device=point.device)
    for number, _, clear in _near_places(point, blocks):
        marks |= torch.nn.functional.one_hot(number, SIZE * SIZE).bool() & clear[:, None]
    return marks


def _way(point: Tensor, blocks: Tensor, left: Tensor) -> Tensor:
    """The move [B, 2] to the place near the point from which the fewest steps are `left`
    [B, 169]."""
    best = torch.full_like(point[:, 0], torch.inf)
    move = torch.zeros_like(point)
    for number, place, clear in _near_places(point, blocks):
        steps = left.gather(1, number[:, None])[:, 0] + 0.1 * (place - point).norm(dim=1)
        steps = torch.where(clear, steps, torch.inf)
        move = torch.where((steps < best)[:, None], place - point, move)
        best = torch.minimum(best, steps)
    return move


def _clear(start: Tensor, end: Tensor, blocks: Tensor) -> Tensor:
    """[B] bool: whether a move from start to end [B, 2], along x and then y, touches no block."""
    clear = torch.ones(len(start), dtype=torch.bool, device=start.device)
    corner = torch.stack([end[:, 0], start[:, 1]], -1)
    for a, b in ((start, corner), (corner, end)):
        low, high = torch.minimum(a, b)[:, None], torch.maximum(a, b)[:, None]
        inside = (low < blocks + HALF - TOUCH) & (high > blocks - HALF + TOUCH)
        clear &= ~inside.all(-1).any(1)
    return clear


def _distances(free: Tensor, ends: Tensor) -> Tensor:
    """Fewest steps [B, 169] to `ends` [B, 169] over free places, infinite where there is no way: a
    step goes to a neighbour along one axis, or to one along both by a free place beside."""
    shape = (len(free), 1, SIZE, SIZE)
    left = torch.where(ends & free, 0.0, FAR).view(shape)
    wall = torch.where(free, 0.0, FAR).view(shape)
    pool = torch.nn.functional.max_pool2d
    while True:
        # Along one axis through free places, and then along the other: both parts of a step.
        first = torch.maximum(-pool(-left, (1, 3), 1, (0, 1)), wall)
        both = torch.maximum(-pool(-first, (3, 1), 1, (1, 0)), wall)
        closer = torch.minimum(left, both + 1)
        if torch.equal(closer, left):
            return torch.where(left < FAR, left, torch.inf).flatten(1).double()
        left = closer
