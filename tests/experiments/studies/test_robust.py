"""The study of DR-RPO: its world, and what robust planning does in it."""

from pathlib import Path

import numpy as np
import pytest

from algorithms.dr_rpo import DRRPOConfig, returns, robust_values
from experiments.studies import robust
from mbrl.errors import ConfigError


def test_returns_of_both_plans_are_sums() -> None:
    """Collecting pays 0.45 a step while nothing failed; investing 1 from the third step on."""
    features, factors, reward = robust.world(8)
    assert np.allclose(features.sum(-1), 1) and np.allclose(factors.sum(-1), 1)
    for action, paid in ((0, [0.45] * 8), (1, [0, 0, *[1] * 6])):
        policy = np.zeros((8, 4, 2))
        policy[..., action] = 1.0
        for share in (0.0, 0.3):
            stays = (1 - share) * 0.98
            expected = sum(p * stays**t for t, p in enumerate(paid))
            moved = robust.shifted(factors, share)
            got = returns(policy, features, moved, reward, robust.BASE)
            assert got == pytest.approx(expected)


def test_a_large_radius_collects_and_none_invests() -> None:
    features, factors, reward = robust.world(8)
    reference = np.full((4, 2), 0.5)
    for radius, invests in ((0.0, True), (0.4, False)):
        config = DRRPOConfig(radius=radius, temperature=0.05, horizon=8)
        policy, _ = robust_values(features, factors, reward, config, reference)
        assert (policy[0, robust.BASE, 1] > 0.9) == invests


def test_the_study_measures(tmp_path: Path) -> None:
    settings = robust.DEFAULTS | {"episodes": 30, "config": {"radius": 0.4}}
    outcome = robust.measure(settings, 0, tmp_path)
    curve = dict(zip(outcome.curves["shift"], outcome.curves["return"], strict=True))
    assert outcome.values["nominal"] == curve[0.0] > curve[0.4] == outcome.values["shift_04"]
    assert outcome.values["above"] > 0  # few episodes: optimistic
    other = robust.measure(settings | {"shifts": [0.5]}, 0, tmp_path)  # the curve's alone
    assert other.values == outcome.values and other.curves["shift"] == [0.5]
    with pytest.raises(ConfigError, match=r"radios.*did you mean 'radius'"):
        robust.measure(settings | {"config": {"radios": 0.4}}, 0, tmp_path)
    still = robust.measure(robust.DEFAULTS | {"learn": False}, 0, tmp_path)
    assert still.values["invests"] == 0.5 and np.isnan(still.values["above"])
