"""Discounted returns of logged rows."""

import numpy as np

from mbrl.types import Transitions

BLOCK = 65_536  # rows that are plain numbers at a time, which take eight times their memory


def endless_return(data: Transitions, gamma: float) -> float:
    """The discounted return of the mean reward for ever; where steps have durations, each discounts
    by the mean of `gamma ** duration`."""
    discount = gamma
    if data.duration is not None:
        discount = float((gamma ** data.duration.cpu().double().numpy()).mean())
    total = sum(float(r.cpu().double().numpy().sum()) for r in data.reward.split(16 * BLOCK))
    return total / len(data) / (1 - discount)


def returns_to_go(data: Transitions, gamma: float) -> np.ndarray:
    """The discounted return from each row on [N], float64; after a truncation the mean reward goes
    on for ever."""
    endless, returns = endless_return(data, gamma), np.empty(len(data))
    for first, stop in data.episodes():
        returns[first:stop] = _of_episode(data, gamma, first, stop, endless)
    return returns


def returns_at(data: Transitions, gamma: float, rows: np.ndarray) -> np.ndarray:
    """`returns_to_go` at the rows [M] alone, [M]: only their episodes are looked at."""
    endless, spans = endless_return(data, gamma), data.episodes()
    episode = np.searchsorted([stop for _, stop in spans], rows, side="right")
    returns = np.empty(len(rows))
    for number in np.unique(episode).tolist():
        first, stop = spans[number]
        own = episode == number
        returns[own] = _of_episode(data, gamma, first, stop, endless)[rows[own] - first]
    return returns


def _of_episode(
    data: Transitions, gamma: float, first: int, stop: int, endless: float
) -> np.ndarray:
    returns = np.empty(stop - first)
    tail = 0.0 if bool(data.terminated[stop - 1]) else endless
    for end in range(stop, first, -BLOCK):
        begin = max(first, end - BLOCK)
        # Plain numbers, of which a million take less time than to import SciPy's filter for them.
        some: list[float] = data.reward[begin:end].cpu().double().tolist()
        discount = [gamma] * len(some)
        if data.duration is not None:
            discount = (gamma ** data.duration[begin:end].cpu().double().numpy()).tolist()
        for row in range(len(some) - 1, -1, -1):
            some[row] = tail = some[row] + discount[row] * tail
        returns[begin - first : end - first] = some
    return returns
