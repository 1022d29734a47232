"""Assignments against all permutations, transport plans against their conditions."""

from itertools import permutations

import numpy as np
import pytest

from mbrl.errors import ConfigError
from mbrl.policy_gradient.measures.matching import hard_match, soft_match, transport


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (4, 2), (2, 4), (1, 1)])
def test_a_hard_match_is_the_best_of_all(rows: int, columns: int) -> None:
    generator = np.random.default_rng(rows * 10 + columns)
    for _ in range(20):
        scores = generator.uniform(size=(rows, columns))
        if rows <= columns:
            best = max(
                sum(scores[i, c] for i, c in enumerate(chosen))
                for chosen in permutations(range(columns), rows)
            )
        else:
            best = max(
                sum(scores[r, j] for j, r in enumerate(chosen))
                for chosen in permutations(range(rows), columns)
            )
        rewards = hard_match(scores, penalty=0.5)
        left = max(rows - columns, 0)
        assert rewards.sum() == pytest.approx(best - 0.5 * left)
        assert (rewards == -0.5).sum() == left


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 5)])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_a_plan_has_its_margins_and_the_form_of_an_optimum(
    shape: tuple[int, int], scale: float
) -> None:
    scores = scale * np.random.default_rng(0).uniform(size=shape)
    plan = transport(scores, 0.2 * scale, sweeps=2000)
    np.testing.assert_allclose(plan.sum(1), 1 / shape[0], rtol=1e-9)
    np.testing.assert_allclose(plan.sum(0), 1 / shape[1], rtol=1e-6)
    # log plan - scores / temperature is a row's number plus a column's: no cycle gains.
    rest = np.log(plan) - scores / (0.2 * scale)
    np.testing.assert_allclose(rest - rest[:1] - rest[:, :1] + rest[0, 0], 0, atol=1e-9)


def test_a_cold_soft_match_is_the_hard_one() -> None:
    scores = np.random.default_rng(1).uniform(size=(4, 4))
    np.testing.assert_allclose(soft_match(scores, 1e-3, 5000), hard_match(scores), atol=1e-3)


def test_nothing_to_match_and_wrong_shapes() -> None:
    assert hard_match(np.zeros((2, 0)), penalty=1.0).tolist() == [-1.0, -1.0]
    assert soft_match(np.zeros((2, 0))).tolist() == [0.0, 0.0]
    assert hard_match(np.zeros((0, 3))).shape == (0,)
    with pytest.raises(ConfigError, match="shape"):
        hard_match(np.zeros(3))
    with pytest.raises(ConfigError, match="temperature"):
        transport(np.zeros((2, 2)), 0.0)
