"""Support by neighbours: what is inside, what is outside, and the yardstick."""

import numpy as np
import pytest
import torch

from algorithms.evaluation.support import rows_to_look_at, support
from mbrl.data import from_arrays
from mbrl.errors import DataError


def data(discrete=False, n=2000, spread=0.1):
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1, 1, (n, 2))
    action = np.clip(0.8 * obs[:, :1] + spread * rng.normal(size=(n, 1)), -1, 1)
    if discrete:
        action = (obs[:, 0] + 0.1 * rng.normal(size=n) > 0).astype(int) + (rng.random(n) < 0)
    return from_arrays(
        obs=obs, action=action, reward=np.zeros(n), next_obs=np.roll(obs, -1, 0),
        terminated=np.zeros(n, bool), truncated=np.arange(n) % 10 == 9, boundaries="cut",
        **({"discrete": True} if discrete else {}),
    )  # fmt: skip


def test_the_logged_rule_is_inside_and_another_is_outside():
    dataset = data()
    rows = rows_to_look_at(dataset)
    obs = dataset.transitions.obs[torch.from_numpy(rows)]
    mean = support(0.8 * obs[:, :1], dataset, rows)
    assert mean.outside <= 0.06 and mean.logged_outside == pytest.approx(0.05, abs=0.01)
    other = support(-0.8 * obs[:, :1], dataset, rows)
    # the two rules agree where the first observation is near 0: within the noise of the log
    near = float((obs[:, 0].abs() < 0.15).float().mean())
    assert other.outside > 1 - near - 0.15
    assert float(np.median(other.distances)) > 5 * float(np.median(mean.distances))


def test_discrete_actions_that_no_neighbour_took_are_outside():
    dataset = data(discrete=True)
    rows = rows_to_look_at(dataset)
    obs = dataset.transitions.obs[torch.from_numpy(rows)]
    same = support((obs[:, 0] > 0).long(), dataset, rows)
    other = support((obs[:, 0] <= 0).long(), dataset, rows)
    assert same.outside == 0 and other.outside > 0.6


def test_a_single_episode_has_nothing_to_compare_with():
    one = data(n=9)
    with pytest.raises(DataError, match="the data has one episode"):
        support(one.transitions.action, one, np.arange(9))


def test_support_at_repeated_observations_does_not_depend_on_the_order_of_the_log():
    """Two kinds of patients, of whom a quarter had action 1, all in the log's second half."""
    rng = np.random.default_rng(0)
    kind = rng.integers(2, size=4000)
    action = (np.arange(4000) >= 2000) & (rng.random(4000) < 0.5)
    outside = []
    for order in (np.arange(4000), np.arange(4000)[::-1]):
        obs = np.eye(2)[kind[order]]
        dataset = from_arrays(
            obs=obs, action=action[order].astype(int), reward=np.zeros(4000), next_obs=obs,
            terminated=np.ones(4000, bool), truncated=np.zeros(4000, bool), discrete=True,
        )  # fmt: skip
        rows = rows_to_look_at(dataset)
        outside.append(support(torch.ones(len(rows), dtype=torch.int64), dataset, rows).outside)
    # 20 random patients have no action 1 with probability 0.75^20
    assert max(outside) < 0.02
