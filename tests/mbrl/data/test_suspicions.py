"""What `data check` points at, and what it leaves alone."""

import numpy as np
import pytest
import torch

from mbrl.data import from_arrays, load
from mbrl.data.suspicions import action_coverage, suspicions


def arrays(n=2000, seed=0, length=50):
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(n, 3))
    end = np.arange(n) % length == length - 1
    end[min(7, n - 1)] = True  # so that episodes differ in length
    return {
        "obs": obs, "action": rng.uniform(-1, 1, (n, 2)), "reward": rng.normal(size=n),
        "terminated": np.zeros(n, bool), "truncated": end, "next_obs": np.roll(obs, -1, 0),
        "boundaries": "cut",
    }  # fmt: skip


def messages(**changes):
    return [finding.message for finding in suspicions(from_arrays(**arrays() | changes))]


def test_rewards_in_another_unit():
    """Beyond 1e-4 and of 1e6 on average; not rare large ones."""
    reward = np.clip(np.random.default_rng(1).normal(size=2000), -1, 1)
    (small,) = messages(reward=1e-4 * reward)
    assert "no reward is beyond 0.0001" in small and "multiply rewards by 10000" in small
    (large,) = messages(reward=2e6 * np.sign(reward))
    assert "rewards are 2e+06 on average" in large and "multiply rewards by 1e-06" in large
    assert messages(reward=np.zeros(2000)) == []
    assert messages(reward=np.where(np.arange(2000) == 5, 1.0, 0.0)) == []
    assert messages(reward=np.where(np.arange(2000) == 5, 5000.0, reward)) == []


def test_a_column_that_learners_take_for_constant():
    obs = arrays()["obs"] * [1.0, 1e-14, 1.0]
    (told,) = messages(obs=obs, next_obs=np.roll(obs, -1, 0))
    assert "obs[1] varies by less than 1e-12" in told


def test_clean_data_raise_no_suspicion():
    assert messages() == []
    for name in ("pendulum/medium-replay", "pendulum/expert", "cartpole/random"):
        assert suspicions(load(name)) == [] or name == "cartpole/random"


def test_a_column_that_holds_the_action_is_found_and_a_noisy_one_is_not():
    base = arrays()
    rng = np.random.default_rng(1)
    for copy, found in (
        (3 * base["action"][:, 1] + 1, True),  # in other units
        (np.round(base["action"][:, 1], 1), True),  # rounded
        (base["action"][:, 1] + 0.2 * rng.normal(size=2000), False),
        (np.roll(base["action"][:, 1], 1), False),  # the action before: known in time
    ):
        obs = base["obs"].copy()
        obs[:, 2] = copy
        texts = messages(obs=obs, next_obs=np.roll(obs, -1, 0))
        assert any("obs[2] alone gives action[1] away" in t for t in texts) == found, (found, texts)


def test_a_leak_of_discrete_actions():
    base = arrays()
    action = np.random.default_rng(2).integers(0, 3, 2000)
    obs = base["obs"].copy()
    obs[:, 0] = action == 1  # gives one of three away: a rule could do that
    assert not messages(obs=obs, next_obs=np.roll(obs, -1, 0), action=action)
    obs[:, 0] = 10 - action
    found = messages(obs=obs, next_obs=np.roll(obs, -1, 0), action=action)
    assert any("obs[0] alone gives the action away" in t for t in found)


def test_equal_terminated_lengths_repeated_rows_and_still_columns():
    end = np.arange(2000) % 50 == 49
    found = messages(terminated=end, truncated=np.zeros(2000, bool))
    assert any("end terminated after exactly 50 steps" in t for t in found)
    half = {k: v for k, v in arrays(1000).items() if k != "boundaries"}
    twice = {k: np.concatenate([v, v]) for k, v in half.items()}
    assert any("1000 rows repeat another one" in t for t in messages(**twice))
    obs = arrays()["obs"].copy()
    obs[:, 1] = 4
    assert any("obs[1] never changes" in t for t in messages(obs=obs, next_obs=np.roll(obs, -1, 0)))


@pytest.mark.parametrize("part", [7, 100_000])
def test_rows_are_repeated_where_all_values_are_equal(part: int, monkeypatch) -> None:
    """As NumPy's `unique` of whole rows counts them, in which -0 is 0."""
    monkeypatch.setattr("mbrl.data.suspicions.PART", part)
    rng = np.random.default_rng(0)
    ends = {"truncated": np.ones(100, bool), "terminated": np.zeros(100, bool)}
    for values in (2, 3, 4):
        columns = {k: rng.integers(0, values, (100, 1)).astype(float) for k in ("obs", "next_obs")}
        columns["obs"][rng.random(100) < 0.1] *= -1
        action, reward = rng.integers(0, values, (100, 1)) / 4, rng.integers(0, 2, 100) * 1.0
        found = messages(**columns, action=action, reward=reward, **ends)
        table = np.hstack([columns["obs"] + 0.0, action, reward[:, None], columns["next_obs"]])
        _, first, counts = np.unique(table, axis=0, return_index=True, return_counts=True)
        again, row = int((counts - 1).sum()), int(first[counts > 1].min())
        assert any(f"{again} rows repeat another one in every value" in t for t in found)
        assert any(f"the first one is row {row};" in t for t in found)


def test_coverage_is_one_for_random_actions_and_none_for_a_rule():
    base = arrays()
    assert 0.95 < action_coverage(from_arrays(**base))["local_spread"] < 1.05
    rule = np.tanh(base["obs"][:, :2])
    assert action_coverage(from_arrays(**base | {"action": rule}))["local_spread"] < 0.35
    discrete = np.random.default_rng(3).integers(0, 4, 2000)
    cover = action_coverage(from_arrays(**base | {"action": discrete}))
    assert 0.95 < cover["local_spread"] < 1.05
    assert np.allclose(cover["shares"], np.bincount(discrete) / 2000)
    one = from_arrays(**{k: v[:1] if k != "boundaries" else v for k, v in base.items()})
    assert action_coverage(one)["local_spread"] == 0 and torch.isfinite(one.transitions.obs).all()


def test_coverage_of_actions_unrelated_to_repeated_observations_is_one():
    """Also where one half of the log has the one action, the other half the other, or by turns."""
    n = 4000
    obs = np.eye(2)[np.random.default_rng(0).integers(2, size=n)]
    for action in (np.arange(n) >= n // 2, np.arange(n) // 10 % 2):
        base = arrays(n) | {"obs": obs, "next_obs": np.roll(obs, -1, 0)}
        for own in ({"action": action.astype(int)}, {"action": 2.0 * action[:, None] - 1}):
            assert 0.9 < action_coverage(from_arrays(**base | own))["local_spread"] < 1.1
