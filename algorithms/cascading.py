"""Cascading reinforcement learning (arXiv 2401.08961): at every step of a session a list of items
is shown, the first attractive one is clicked, pays and moves the user's state. Finite states and
items, in float64. No code of the authors is known: the formulas are reconstructed.

Differences: the list may be empty. `bonus` scales the root of the
logarithm L in the widths, which the theory wants at 1.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mbrl.config import Count, Fraction, NonNegative, Settings
from mbrl.errors import DataError

Array = np.ndarray


@dataclass(frozen=True)
class CascadingVIConfig(Settings):
    """Settings of CascadingVI."""

    horizon: Count = 4  # H, steps of an episode
    size: Count = 3  # M, items of a list at most
    episodes: Count = 10_000  # K, in the logarithm of the widths
    delta: Fraction = 0.05  # probability that the widths fail
    bonus: NonNegative = 1.0  # L is multiplied by its square; 0: certainty equivalence


def list_value(attraction: Array, value: Array, default: float, items: tuple[int, ...]) -> float:
    """f(A) = sum_i prod_(j < i) (1 - q_j) q_i w_i + prod_j (1 - q_j) w_0 of an ordered list, from
    attraction probabilities q [N], values of a click w [N] and that of none, w_0."""
    total, unclicked = 0.0, 1.0
    for a in items:
        total += unclicked * attraction[a] * value[a]
        unclicked *= 1 - attraction[a]
    return float(total + unclicked * default)


def best_lists(
    attraction: Array, value: Array, default: Array, size: int
) -> tuple[list[tuple[int, ...]], Array]:
    """BestPerm: for each of S states the ordered list of at most `size` items with the largest f,
    and that f [S], from q [S, N], w [S, N] and w_0 [S]. Items stand in descending w; with n of them
    left and k places, F(n, k) = max(F(n - 1, k), q w + (1 - q) F(n - 1, k - 1)) of the first of
    these, F(0, k) = F(n, 0) = w_0. An item whose w does not exceed w_0 is never in it. Raises
    `DataError` for other shapes, and for attractions that are no probabilities."""
    states, items = attraction.shape
    if value.shape != attraction.shape or default.shape != (states,):
        raise DataError(
            f"attraction is {attraction.shape}, value {value.shape} and default {default.shape}; "
            "give [S, N], [S, N] and [S]"
        )
    if not ((attraction >= 0) & (attraction <= 1)).all() or np.isnan(value).any():
        raise DataError("attraction must lie in [0, 1], and no value may be NaN")
    order = np.argsort(-value, axis=1, kind="stable")
    q, w = (np.take_along_axis(x, order, 1) for x in (attraction, value))
    best = np.repeat(default[:, None], size + 1, 1).astype(np.float64)
    taken = np.zeros((items, states, size + 1), dtype=bool)
    for i in reversed(range(items)):
        with_it = q[:, i, None] * w[:, i, None] + (1 - q[:, i, None]) * best[:, :-1]
        taken[i, :, 1:] = with_it > best[:, 1:]
        best[:, 1:] = np.maximum(best[:, 1:], with_it)
    lists = []
    for s in range(states):
        chosen: list[int] = []
        for i in range(items):
            if taken[i, s, size - len(chosen)]:
                chosen.append(int(order[s, i]))
        lists.append(tuple(chosen))
    return lists, best[:, size]


def all_lists(items: int, size: int) -> Iterator[tuple[int, ...]]:
    """Every ordered list of at most `size` of `items`, the empty one first."""
    for count in range(min(size, items) + 1):
        yield from itertools.permutations(range(items), count)


class CascadingVI:
    """Optimistic value iteration from counts of examined items, of clicks and of where they led.

    Formula:

        attraction  q' = min(q + 2 sqrt(q (1 - q) L / n) + 5 L / n, 1), n examinations, q their
                    share of clicks, L = log(K H S (N + 1) / delta)
        click       w' = min(r + p V' + b, H - h), b = 2 sqrt(Var_p(V') L / m) +
                    2 sqrt(p (V' - V_)^2 L / m) + 5 H L / m, m transitions counted in p
        none        an item that is always clicked, pays 0 and is not in lists
        list        BestPerm of q' and w'; V' = min(f, H - h)
        lower       V_ = sum_i prod_(j < i) (1 - q'_j) q_i_ max(r + p V_ - b, 0), q_ = max(q - its
                    width, 0)

    When not to use it: where items or states are many, since nothing generalises between them, or
    where users do not scan lists from the top. The widths are those of the theory: with `bonus` 1
    small problems are explored for long.

    `reward` [S, N] of a click lies in [0, 1]. Raises `DataError` otherwise.
    """

    def __init__(self, reward: Array, config: CascadingVIConfig | None = None) -> None:
        if reward.ndim != 2 or not ((reward >= 0) & (reward <= 1)).all():  # NaN too
            raise DataError(
                f"reward has shape {reward.shape} and lies in [{reward.min():g}, "
                f"{reward.max():g}]; give [S, N] in [0, 1], scaled by its range"
            )
        self.config = config or CascadingVIConfig()
        states, items = reward.shape
        self.reward = np.column_stack([reward, np.zeros(states)])  # the last: no click
        self.examined, self.clicked = np.zeros((2, states, items))
        self.moved = np.zeros((states, items + 1, states))

    def observe(
        self, state: int, items: tuple[int, ...], place: int | None, next_state: int
    ) -> None:
        """A list that was shown, the `place` in it that was clicked (None: none) and the next
        state. Items after a click were not examined. Raises `DataError` for places, states and
        items that do not exist, and for an item that is listed twice."""
        if place is not None and not 0 <= place < len(items):
            raise DataError(f"place is {place}, the list has {len(items)} items; None: no click")
        if len(set(items)) < len(items):
            raise DataError(f"items {items} have one twice; a list shows each of them once")
        states, own = self.examined.shape
        for name, numbers, count in (
            ("state", (state, next_state), states), ("items", items, own)
        ):  # fmt: skip
            if not all(0 <= k < count for k in numbers):
                raise DataError(f"{name}: {numbers} must be whole numbers from 0 to {count - 1}")
        seen = items if place is None else items[: place + 1]
        self.examined[state, list(seen)] += 1
        if place is not None:
            self.clicked[state, items[place]] += 1
        at = self.reward.shape[1] - 1 if place is None else items[place]
        self.moved[state, at, next_state] += 1

    def plan(self) -> tuple[list[list[tuple[int, ...]]], Array]:
        """Lists for each of H steps and S states, and optimistic values [H + 1, S], the last 0."""
        c, states = self.config, len(self.reward)
        entries = c.episodes * c.horizon * self.reward.size
        confidence = c.bonus**2 * np.log(entries / c.delta)
        low, high = self._attraction(confidence)
        visits = self.moved.sum(2)
        p = self.moved / np.maximum(visits, 1)[..., None]
        policy: list[list[tuple[int, ...]]] = [[] for _ in range(c.horizon)]
        upper, lower = np.zeros((2, c.horizon + 1, states))
        for h in reversed(range(c.horizon)):
            top = float(c.horizon - h)
            width = self._width(p, visits, upper[h + 1], lower[h + 1], confidence)
            value = np.minimum(self.reward + p @ upper[h + 1] + width, top)
            policy[h], best = best_lists(high, value[:, :-1], value[:, -1], c.size)
            upper[h] = np.minimum(best, top)
            least = np.maximum(self.reward + p @ lower[h + 1] - width, 0.0)
            for s, items in enumerate(policy[h]):
                lower[h, s] = _lower_value(low[s], high[s], least[s], items)
        return policy, upper

    def _attraction(self, confidence: float) -> tuple[Array, Array]:
        """Lower and upper attraction probabilities [S, N]."""
        n = np.maximum(self.examined, 1)
        q = self.clicked / n
        width = 2 * np.sqrt(q * (1 - q) * confidence / n) + 5 * confidence / n
        unknown = (self.examined == 0) & (confidence > 0)
        width = np.where(unknown, 1.0, width)
        return np.maximum(q - width, 0.0), np.minimum(q + width, 1.0)

    def _width(
        self, p: Array, visits: Array, upper: Array, lower: Array, confidence: float
    ) -> Array:
        """b [S, N + 1] of the value after a click."""
        m, horizon = np.maximum(visits, 1), self.config.horizon
        variance = np.maximum(p @ upper**2 - (p @ upper) ** 2, 0.0)
        apart = p @ (upper - lower) ** 2
        width = 2 * np.sqrt(variance * confidence / m) + 2 * np.sqrt(apart * confidence / m)
        width += 5 * horizon * confidence / m
        unknown = (visits == 0) & (confidence > 0)
        return np.where(unknown, float(horizon), np.minimum(width, horizon))


def _lower_value(low: Array, high: Array, value: Array, items: tuple[int, ...]) -> float:
    """A lower bound of f, with the default's value last in `value` [N + 1]."""
    total, unclicked = 0.0, 1.0
    for a in items:
        total += unclicked * low[a] * value[a]
        unclicked *= 1 - high[a]
    return float(total + unclicked * value[-1])


def optimum(
    attraction: Array, transition: Array, reward: Array, horizon: int, size: int
) -> tuple[list[list[tuple[int, ...]]], Array]:
    """The best lists of known `attraction` [S, N], `transition` [S, N + 1, S] (the last item: no
    click) and `reward` [S, N], and their values [H + 1, S]."""
    values = np.zeros((horizon + 1, len(reward)))
    policy: list[list[tuple[int, ...]]] = [[] for _ in range(horizon)]
    for h in reversed(range(horizon)):
        ahead = transition @ values[h + 1]
        policy[h], values[h] = best_lists(attraction, reward + ahead[:, :-1], ahead[:, -1], size)
    return policy, values


def policy_values(
    policy: list[list[tuple[int, ...]]], attraction: Array, transition: Array, reward: Array
) -> Array:
    """Expected returns [H + 1, S] of lists for each step and state."""
    values = np.zeros((len(policy) + 1, len(reward)))
    for h in reversed(range(len(policy))):
        ahead = transition @ values[h + 1]
        for s, items in enumerate(policy[h]):
            value = reward[s] + ahead[s, :-1]
            values[h, s] = list_value(attraction[s], value, float(ahead[s, -1]), items)
    return values
