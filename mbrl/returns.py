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
    from scipy.signal import lfilter  # here, as it takes a second to import

    reward = np.array(data.reward.cpu().numpy(), np.float64)
    endless = endless_return(data, gamma)
    if data.duration is not None:
        discount = gamma ** data.duration.cpu().double().numpy()
        return _irregular_returns(data, reward, discount, endless)
    for first, stop in data.episodes():
        tail = 0.0 if data.terminated[stop - 1] else endless
        backwards = np.concatenate([[tail], reward[first:stop][::-1]])
        reward[first:stop] = lfilter([1.0], [1.0, -gamma], backwards)[1:][::-1]  # in its place
    return reward


def _irregular_returns(
    data: Transitions, reward: np.ndarray, discount: np.ndarray, endless: float
) -> np.ndarray:
    """Discounted return from each row on, where rows have discounts of their own."""
    returns = np.empty_like(reward)
    for first, stop in data.episodes():
        tail = 0.0 if data.terminated[stop - 1] else endless
        for row in range(stop - 1, first - 1, -1):
            tail = reward[row] + discount[row] * tail
            returns[row] = tail
    return returns
