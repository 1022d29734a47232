"""Support by neighbours: what is inside, what is outside, and the yardstick."""

import numpy as np
import pytest
import torch

from algorithms.evaluation.support import rows_to_look_at, support
from mbrl.data import from_arrays
from mbrl.errors import DataError
from mbrl.types import Spec


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


def test_actions_that_are_no_numbers_are_not_near_anything():
    dataset, rows = data(), np.arange(5)
    actions = dataset.transitions.action[:5].clone().float()
    actions[3] = torch.nan
    with pytest.raises(DataError, match="actions that are not finite"):
        support(actions, dataset, rows)


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


@pytest.mark.parametrize("discrete", [False, True])
def test_rows_whose_like_are_in_their_own_episode_are_compared_with_others(discrete: bool) -> None:
    """Six persons with facts of their own: the nearest rows are a person's own ones."""
    rng, each, persons = np.random.default_rng(0), 120, 6
    n = each * persons
    facts = rng.normal(size=(persons, 3)).repeat(each, 0)
    obs = np.column_stack([0.1 * rng.normal(size=n).cumsum(), facts])
    action = rng.integers(0, 2, n) if discrete else rng.uniform(-0.3, 0.3, (n, 1))
    dataset = from_arrays(
        obs=obs, action=action, reward=np.zeros(n), terminated=np.zeros(n, bool),
        truncated=np.arange(n) % each == each - 1,
        spec=Spec("mine", 4, 1, 3) if discrete else Spec("mine", 4, 1, None, (-9.0,), (9.0,)),
    )  # fmt: skip
    rows = rows_to_look_at(dataset)
    nobodys = torch.full((len(rows),), 2) if discrete else torch.full((len(rows), 1), 5.0)
    measured = support(nobodys, dataset, rows)
    assert measured.outside == 1.0 and measured.logged_outside <= 0.06
    assert np.isfinite(measured.distances).all()
    usual = support(dataset.transitions.action[torch.from_numpy(rows)], dataset, rows)
    assert usual.outside == usual.logged_outside == measured.logged_outside
