"""A grid of coloured cells that are to be stepped on in a given order, and walks that do so: the
setting of the study of temporal abstraction, small, and with exact shortest ways.

A reward of 1 comes with the last colour of the order and at no other time; a colour out of turn
ends the episode. What the order is, is not observed.
"""

from typing import NamedTuple

import torch
from torch import Generator, Tensor

ROWS = ("0..#1", ".....", "#.2..", ".....", "3..#4")
SIZE, COLOURS = len(ROWS), 5
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
FAR = 1000  # stands for no way


class Walks(NamedTuple):
    """Observations [N, T, cells], actions [N, T] (0 behind the end), whether there is a step [N, T]
    and the number of colours behind it [N, T] int64."""

    obs: Tensor
    action: Tensor
    mask: Tensor
    leg: Tensor


class State(NamedTuple):
    """Cells [B], how many colours of the order are done [B], whether the episode is over [B]."""

    cell: Tensor
    done: Tensor
    over: Tensor


class PinPad:
    """The grid with one order of colours. `moves` [cells, 4] is the cell that each action leads to,
    `colour` [cells] that of a cell or -1, `distance` [COLOURS, cells] the steps to a colour on
    cells without one."""

    def __init__(self, order: tuple[int, ...], generator: Generator) -> None:
        self.order, self.generator = torch.tensor(order), generator
        cells = [(r, c) for r in range(SIZE) for c in range(SIZE) if ROWS[r][c] != "#"]
        number = {cell: i for i, cell in enumerate(cells)}
        marks = [ROWS[r][c] for r, c in cells]
        self.colour = torch.tensor([int(m) if m.isdigit() else -1 for m in marks])
        self.moves = torch.tensor(
            [
                [number.get((r + dr, c + dc), i) for dr, dc in MOVES]
                for i, (r, c) in enumerate(cells)
            ]
        )
        self.plain = torch.nonzero(self.colour < 0).flatten()
        self.distance = torch.stack([self._distance(k) for k in range(COLOURS)])

    def _distance(self, colour: int) -> Tensor:
        """Sweeps until nothing changes. From a colour one can go, but not over it."""
        target = self.colour == colour
        distance = torch.where(target, 0, FAR)
        blocked = (self.colour >= 0) & ~target
        while True:
            passable = torch.where(blocked, FAR, distance)
            closer = torch.where(target, 0, 1 + passable[self.moves].amin(1)).clamp_max(FAR)
            if torch.equal(closer, distance):
                return distance
            distance = closer

    def reset(self, count: int) -> State:
        """On cells without a colour, uniform."""
        index = torch.randint(len(self.plain), (count,), generator=self.generator)
        nothing = torch.zeros(count, dtype=torch.int64)
        return State(self.plain[index], nothing, nothing.bool())

    def observe(self, state: State) -> Tensor:
        """[B, cells], one-hot."""
        return torch.nn.functional.one_hot(state.cell, len(self.colour)).float()

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """The next state, rewards [B] and whether each episode is over [B] bool."""
        cell = self.moves[state.cell, action]
        entered = self.colour[cell]
        stepped = (entered >= 0) & (cell != state.cell)
        wanted = self.order[state.done.clamp_max(len(self.order) - 1)]
        right = stepped & (entered == wanted) & ~state.over
        done = state.done + right
        solved = right & (done == len(self.order))
        over = state.over | solved | (stepped & ~right)
        return State(cell, done, over), solved.float(), over

    def optimal(self, state: State) -> Tensor:
        """One of the actions [B] on a shortest way to the next colour, each as likely."""
        wanted = self.order[state.done.clamp_max(len(self.order) - 1)]
        after = self.distance[wanted[:, None], self.moves[state.cell]]
        colour = self.colour[self.moves[state.cell]]
        closed = (colour >= 0) & (colour != wanted[:, None])
        after = torch.where(closed, FAR, after)
        best = (after == after.amin(1, keepdim=True)).float()
        return torch.multinomial(best, 1, generator=self.generator)[:, 0]


def walks(
    orders: list[tuple[int, ...]], count: int, length: int, noise: float, generator: Generator
) -> Walks:
    """`count` walks of at most `length` steps for each of the orders: shortest ways, with a share
    `noise` of uniform moves among those onto cells without a colour."""
    parts = []
    for order in orders:
        world = PinPad(order, generator)
        state, rows = world.reset(count), []
        for _ in range(length):
            action = world.optimal(state)
            free = (world.colour[world.moves[state.cell]] < 0).float()
            other = torch.multinomial(free, 1, generator=generator)[:, 0]
            random = torch.rand(count, generator=generator) < noise
            action = torch.where(random, other, action)
            mask = ~state.over
            rows.append((world.observe(state), torch.where(mask, action, 0), mask, state.done))
            state = world.step(state, action)[0]
        parts.append([torch.stack(x, 1) for x in zip(*rows, strict=True)])
    return Walks(*(torch.cat(x) for x in zip(*parts, strict=True)))


def agreement(gate: Tensor, data: Walks) -> tuple[float, float]:
    """F1 in per cent of switches, gates [N, T] above a half, against the first steps of legs,
    within a step, both without the first step of a walk; and the share of steps with a switch."""
    first = torch.zeros_like(data.mask)
    first[:, 1:] = (data.leg[:, 1:] > data.leg[:, :-1]) & data.mask[:, 1:]
    switch = (gate > 0.5) & data.mask
    switch[:, 0] = False
    hits = (switch & _wider(first)).sum(), (first & _wider(switch)).sum()
    precision = float(hits[0]) / max(1, int(switch.sum()))
    recall = float(hits[1]) / max(1, int(first.sum()))
    both = precision + recall
    steps = int(data.mask[:, 1:].sum())
    return (200 * precision * recall / both if both else 0.0), 100 * int(switch.sum()) / steps


def _wider(marks: Tensor) -> Tensor:
    wide = marks.clone()
    wide[:, 1:] |= marks[:, :-1]
    wide[:, :-1] |= marks[:, 1:]
    return wide
