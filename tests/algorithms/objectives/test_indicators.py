"""Indicators of sets of vector returns: literal numbers, brute force, volumes by random points."""

import numpy as np
import pytest

from algorithms.objectives.indicators import (
    expected_utility,
    hypervolume,
    non_dominated,
    utility_loss,
    weights_on_simplex,
)
from mbrl.errors import ConfigError

FRONT = np.array([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]])


def test_hypervolume_in_literal_numbers() -> None:
    zero = np.zeros(2)
    assert hypervolume(FRONT, zero) == 6.0
    assert hypervolume(np.concatenate([FRONT, [[1.0, 1.0]], FRONT]), zero) == 6.0
    assert hypervolume(FRONT, np.array([1.0, 1.0])) == 1.0  # of (2, 2) alone
    assert hypervolume(FRONT, np.array([5.0, 0.0])) == 0.0
    assert hypervolume(np.array([[1.0, 2.0, 3.0]]), np.zeros(3)) == 6.0


@pytest.mark.parametrize("objectives", [2, 3, 4])
def test_hypervolume_against_random_points(objectives: int) -> None:
    draws = np.random.default_rng(objectives)
    points = draws.uniform(size=(12, objectives))
    inside = draws.uniform(size=(200_000, objectives))
    covered = (inside[:, None] <= points[None]).all(-1).any(1).mean()
    assert hypervolume(points, np.zeros(objectives)) == pytest.approx(covered, abs=5e-3)
    shifted = points - 2.0
    assert hypervolume(shifted, np.full(objectives, -2.0)) == pytest.approx(
        hypervolume(points, np.zeros(objectives))
    )
    front = non_dominated(points)
    assert hypervolume(front, np.zeros(objectives)) == pytest.approx(
        hypervolume(points, np.zeros(objectives))
    )


def test_the_front_against_pairs() -> None:
    draws = np.random.default_rng(0)
    points = draws.integers(0, 5, size=(40, 3)).astype(float)
    kept = {tuple(row) for row in non_dominated(points)}
    for row in points:
        beaten = any((other >= row).all() and (other > row).any() for other in points)
        assert (tuple(row) in kept) == (not beaten)


def test_utilities() -> None:
    corners = np.eye(2)
    assert expected_utility(FRONT, corners) == 3.0
    assert expected_utility(FRONT[1:2], corners) == 2.0
    assert utility_loss(FRONT[1:2], FRONT, corners) == 1.0
    assert utility_loss(FRONT, FRONT, corners) == 0.0


def test_weights_are_spread_evenly() -> None:
    assert weights_on_simplex(2, 2).tolist() == [[0, 1], [0.5, 0.5], [1, 0]]
    three = weights_on_simplex(3, 4)
    assert len(three) == 15 and np.allclose(three.sum(1), 1) and (three >= 0).all()


def test_wrong_points() -> None:
    for points in (np.zeros((0, 2)), np.array([[np.nan, 1.0]]), np.zeros(3)):
        with pytest.raises(ConfigError, match="finite vector"):
            hypervolume(points, np.zeros(2))
    with pytest.raises(ConfigError, match="2 objectives"):
        hypervolume(FRONT, np.zeros(3))


@pytest.mark.parametrize(("objectives", "divisions"), [(2, 0), (0, 3)])
def test_weights_of_nothing(objectives: int, divisions: int) -> None:
    with pytest.raises(ConfigError, match="both must be at least 1"):
        weights_on_simplex(objectives, divisions)


def test_a_reference_that_is_no_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="reference is"):
        hypervolume(FRONT, np.array([0.0, np.nan]))
