"""Cascading reinforcement learning against every list there is."""

import itertools

import numpy as np
import pytest

from algorithms.cascading import (
    CascadingVI,
    CascadingVIConfig,
    all_lists,
    best_lists,
    list_value,
    optimum,
    policy_values,
)
from experiments.studies.cascading import World, world
from mbrl.errors import DataError


def simulated_value(q, w, default, items) -> float:
    """f by the probability of every outcome of independent clicks."""
    total = 0.0
    for clicks in itertools.product((0, 1), repeat=len(items)):
        p = np.prod([q[a] if c else 1 - q[a] for a, c in zip(items, clicks, strict=True)])
        first = next((a for a, c in zip(items, clicks, strict=True) if c), None)
        total += p * (default if first is None else w[first])
    return float(total)


def test_the_value_of_a_list_is_the_sum_over_outcomes() -> None:
    rng = np.random.default_rng(0)
    for items in all_lists(4, 3):
        q, w, default = rng.random(4), rng.normal(size=4), rng.normal()
        expected = simulated_value(q, w, default, items)
        assert list_value(q, w, default, items) == pytest.approx(expected, abs=1e-12)


def test_best_lists_are_those_of_all() -> None:
    """1000 random states, up to 6 items and 3 places: the value is that of the best of all ordered
    lists, and the list has it."""
    rng = np.random.default_rng(1)
    worse_by_product = worse_by_value = 0
    for _ in range(250):
        n, size = int(rng.integers(1, 7)), int(rng.integers(1, 4))
        q, w, default = rng.random((4, n)), rng.normal(size=(4, n)), rng.normal(size=4)
        lists, value = best_lists(q, w, default, size)
        for s in range(4):
            every = {a: list_value(q[s], w[s], default[s], a) for a in all_lists(n, size)}
            assert value[s] == pytest.approx(max(every.values()), abs=1e-12)
            assert every[lists[s]] == pytest.approx(value[s], abs=1e-12)
            for order, better in ((q[s] * w[s], "product"), (w[s], "value")):
                top = tuple(int(a) for a in np.argsort(-order)[:size])
                if every[top] < value[s] - 1e-9:
                    worse_by_product += better == "product"
                    worse_by_value += better == "value"
    assert worse_by_product > 50 and worse_by_value > 50  # the oracle is needed


def test_items_that_are_always_clicked_and_worse_ones() -> None:
    q, w = np.ones((1, 4)), np.array([[0.1, 0.7, 0.3, 0.2]])
    lists, value = best_lists(q, w, np.zeros(1), 2)
    assert value[0] == pytest.approx(0.7) and lists[0][0] == 1
    assert best_lists(q, w, np.ones(1), 2)[0] == [()]


def test_the_optimum_is_that_of_all_policies_and_of_values() -> None:
    """Two states, three items, two steps: every pair of lists at every step."""
    rng = np.random.default_rng(2)
    q, reward = rng.random((2, 3)), rng.random((2, 3))
    transition = rng.dirichlet(np.ones(2), size=(2, 4))
    policy, values = optimum(q, transition, reward, 2, 2)
    pairs = list(itertools.product(all_lists(3, 2), repeat=2))
    every = [
        policy_values([list(one), list(two)], q, transition, reward)[0]
        for one in pairs
        for two in pairs
    ]
    assert np.allclose(np.max(every, axis=0), values[0], atol=1e-12)
    assert np.allclose(policy_values(policy, q, transition, reward), values, atol=1e-12)


def filled(place: World, config: CascadingVIConfig, sessions: int, seed: int) -> CascadingVI:
    """A learner that saw random lists."""
    agent, rng = CascadingVI(place.reward, config), np.random.default_rng(seed)
    states, items = place.reward.shape
    at_state = rng.integers(states, size=sessions).tolist()
    lists = rng.permuted(np.tile(np.arange(items), (sessions, 1)), axis=1)[:, : config.size]
    liked = rng.random(lists.shape) < place.attraction[np.array(at_state)[:, None], lists]
    up_to, drawn = place.transition.cumsum(-1), rng.random(sessions).tolist()
    columns = (at_state, lists.tolist(), liked.tolist(), drawn)
    for state, shown, clicks, share in zip(*columns, strict=True):
        clicked = clicks.index(True) if True in clicks else None
        at = items if clicked is None else shown[clicked]
        reached = min(int(up_to[state, at].searchsorted(share, "right")), states - 1)
        agent.observe(state, tuple(shown), clicked, reached)
    return agent


def reference_upper(agent: CascadingVI) -> np.ndarray:
    """Optimistic and pessimistic values by loops over states, items and lists."""
    c, (states, count) = agent.config, agent.reward.shape
    items, h_all = count - 1, c.horizon
    log = np.log(c.episodes * h_all * states * count / c.delta) * c.bonus**2
    up, low = np.zeros((h_all + 1, states)), np.zeros((h_all + 1, states))
    for h in range(h_all - 1, -1, -1):
        for s in range(states):
            w, least, q, q_low = {}, {}, {}, {}
            for a in range(count):
                n = agent.moved[s, a].sum()
                if n == 0:
                    b, p = float(h_all), np.zeros(states)
                else:
                    p = agent.moved[s, a] / n
                    mean = sum(p[x] * up[h + 1, x] for x in range(states))
                    var = sum(p[x] * (up[h + 1, x] - mean) ** 2 for x in range(states))
                    apart = sum(p[x] * (up[h + 1, x] - low[h + 1, x]) ** 2 for x in range(states))
                    b = 2 * np.sqrt(var * log / n) + 2 * np.sqrt(apart * log / n)
                    b = min(b + 5 * h_all * log / n, h_all)
                w[a] = min(agent.reward[s, a] + p @ up[h + 1] + b, h_all - h)
                least[a] = max(agent.reward[s, a] + p @ low[h + 1] - b, 0)
                if a < items:
                    m = agent.examined[s, a]
                    mean = agent.clicked[s, a] / m if m else 0.0
                    width = 1.0
                    if m:
                        width = 2 * np.sqrt(mean * (1 - mean) * log / m) + 5 * log / m
                    q[a], q_low[a] = min(mean + width, 1), max(mean - width, 0)
            values = {}
            for chosen in all_lists(items, c.size):
                total, left = 0.0, 1.0
                for a in chosen:
                    total, left = total + left * q[a] * w[a], left * (1 - q[a])
                values[chosen] = total + left * w[items]
            up[h, s] = min(max(values.values()), h_all - h)
            chosen = agent.plan()[0][h][s]
            assert values[chosen] == pytest.approx(max(values.values()), abs=1e-9)
            total, left = 0.0, 1.0
            for a in chosen:
                total, left = total + left * q_low[a] * least[a], left * (1 - q[a])
            low[h, s] = total + left * least[items]
    return up


@pytest.mark.parametrize(("bonus", "sessions"), [(1.0, 40), (0.1, 400), (0.1, 4000)])
def test_the_plan_is_that_of_the_loops(bonus: float, sessions: int) -> None:
    config = CascadingVIConfig(horizon=3, size=2, episodes=100, bonus=bonus)
    agent = filled(world(4), config, sessions, 0)
    assert np.allclose(agent.plan()[1], reference_upper(agent), atol=1e-9)


def test_values_are_optimistic_and_come_down_to_the_truth() -> None:
    place = world(4)
    config = CascadingVIConfig(horizon=3, size=2, episodes=1000)
    best = optimum(*place, 3, 2)[1][0]
    above = []
    for sessions in (100, 10_000, 100_000):
        upper = filled(place, config, sessions, 1).plan()[1][0]
        assert (upper >= best - 1e-9).all()
        above.append(float((upper - best).mean()))
    assert above[0] > above[1] > above[2] and above[2] < 0.5


def test_what_comes_after_the_click_is_not_examined() -> None:
    agent = CascadingVI(np.full((2, 3), 0.5), CascadingVIConfig(size=3))
    agent.observe(0, (2, 0, 1), 1, 1)
    agent.observe(0, (1, 2), None, 0)
    assert agent.examined[0].tolist() == [1, 1, 2] and agent.clicked[0].tolist() == [1, 0, 0]
    assert agent.moved[0, 0].tolist() == [0, 1] and agent.moved[0, 3].tolist() == [1, 0]
    with pytest.raises(DataError, match="place is 2, the list has 2 items"):
        agent.observe(0, (1, 2), 2, 0)
    with pytest.raises(DataError, match="have one twice"):
        agent.observe(0, (1, 1), None, 0)
    with pytest.raises(DataError, match=r"scaled by its range"):
        CascadingVI(np.full((2, 3), 1.5))
    with pytest.raises(DataError, match=r"lies in \[nan, nan\]"):
        CascadingVI(np.array([[np.nan, 0.5]]))


def test_lists_of_what_is_no_probability_are_refused() -> None:
    q, w, default = np.array([[0.9, 0.4]]), np.array([[0.2, 1.0]]), np.array([0.1])
    for wrong in ((2 * q, w, default), (-q, w, default), (q, w * np.nan, default)):
        with pytest.raises(DataError, match="attraction must lie"):
            best_lists(*wrong, size=1)
    with pytest.raises(DataError, match=r"give \[S, N\]"):
        best_lists(q, w[:, :1], default, size=1)


@pytest.mark.parametrize(
    ("state", "items", "after"), [(0, (0, 1), -1), (0, (0, -1), 1), (2, (0, 1), 1), (0, (0, 3), 1)]
)
def test_states_and_items_that_are_none_are_refused(
    state: int, items: tuple[int, ...], after: int
) -> None:
    agent = CascadingVI(np.full((2, 3), 0.5), CascadingVIConfig(size=2))
    with pytest.raises(DataError, match="must be whole numbers from 0"):
        agent.observe(state, items, 1, after)
    agent.observe(0, (2, 1), 1, 1)
