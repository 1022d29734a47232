"""Regret of SquareCB on a linear problem against its theorem, and how it grows."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from algorithms.bandits.problems import Linear
from algorithms.bandits.squarecb import regret_bound
from experiments.studies import contextual_bandits as study

RIDGE = {"oracle": {"kind": "ridge"}}


def run(rounds: int, seed: int, folder: Path, **settings) -> dict[str, float]:
    cell = {"problem": "linear", "rounds": rounds, "config": RIDGE} | settings
    own = Path(tempfile.mkdtemp(dir=folder))  # a cell goes on from what lies in its folder
    return study.measure(study.DEFAULTS | cell, seed, own).values


def ideal(rounds: int) -> float:
    """Regret of inverse gap weighting on the true rewards, with the theorem's gamma."""
    problem = Linear()
    gamma = study.theorem_gamma(problem, rounds)
    expected = problem.draw(20_000, torch.Generator().manual_seed(0)).expected.double().numpy()
    gap = expected.max(1, keepdims=True) - expected
    return float(rounds * (gap / (problem.actions + gamma * gap)).sum(1).mean())


@pytest.mark.parametrize("rounds", [1000, pytest.param(2000, marks=pytest.mark.long)])
def test_regret_is_that_of_the_rule_and_within_the_theorem(rounds: int, tmp_path: Path) -> None:
    """What the oracle does not know yet adds a little to the regret that the rule has with true
    rewards; no run exceeds the theorem's bound with the oracle's own regret."""
    runs = [run(rounds, seed, tmp_path, theorem_gamma=True) for seed in range(3)]
    assert all(r["regret"] < r["bound"] for r in runs)
    most = study.regression_bound(Linear(), rounds)
    assert np.mean([r["regression"] for r in runs]) < most
    mean = np.mean([r["regret"] for r in runs])
    assert 0.95 * ideal(rounds) < mean < 1.15 * ideal(rounds)


def test_regret_grows_as_the_root_of_the_horizon() -> None:
    """Above 1/2 by the logarithm in R."""
    slope = np.log(ideal(10**8) / ideal(10**6)) / np.log(100)
    assert 0.5 < slope < 0.56


@pytest.mark.long
def test_uniform_decisions_have_linear_regret(tmp_path: Path) -> None:
    uniform = {"algorithm": "epsilon_greedy", "config": RIDGE | {"epsilon": 1.0}}
    result = run(1000, 0, tmp_path, **uniform)
    assert result["slope"] == pytest.approx(1.0, abs=0.05)
    scheduled = run(1000, 0, tmp_path)
    assert scheduled["regret"] < 0.5 * result["regret"] and scheduled["slope"] < 0.8


def test_the_bound_by_hand() -> None:
    """K 5, T 80, R 4, delta 2 / e^9: 4 sqrt(1600) + 8 sqrt(400 x 9)."""
    assert regret_bound(5, 80, 4.0, 2 / np.exp(9)) == pytest.approx(160 + 480)
