"""Discounted returns of logged rows."""

import numpy as np

from mbrl.types import Transitions


def endless_return(data: Transitions, gamma: float) -> float:
    """The discounted return of the mean reward for ever; where steps have durations, each discounts
    by the mean of `gamma ** duration`."""
    discount = gamma
    if data.duration is not None:
        discount = float((gamma ** data.duration.cpu().double().numpy()).mean())
    return float(data.reward.cpu().double().numpy().mean()) / (1 - discount)


def returns_to_go(data: Transitions, gamma: float) -> np.ndarray:
    """The discounted return from each row on [N], float64; after a truncation the mean reward goes
    on for ever."""
    returns: list[float] = data.reward.cpu().double().tolist()
    discount = [gamma] * len(returns)
    if data.duration is not None:
        discount = (gamma ** data.duration.cpu().double().numpy()).tolist()
    endless, terminated = endless_return(data, gamma), data.terminated.tolist()
    # Plain numbers, of which a million take less time than to import SciPy's filter for them.
    for first, stop in data.episodes():
        tail = 0.0 if terminated[stop - 1] else endless
        for row in range(stop - 1, first - 1, -1):
            returns[row] = tail = returns[row] + discount[row] * tail
    return np.array(returns, np.float64)
