"""Conformal sets against the exact quantile and its guarantee; decisions by hand; the policy over
thresholds."""

import math
from dataclasses import replace

import numpy as np
import pytest

from algorithms.conformal import (
    AbstentionConfig,
    Decisions,
    Thresholds,
    conformal_quantile,
    cost,
    decide,
    decision_shares,
    expected_coverage,
    label_scores,
    learn_thresholds,
    risk_coverage,
    shaped_cost,
    thresholds,
)
from mbrl.errors import ConfigError, DataError


def test_the_rank_of_the_quantile() -> None:
    nine = np.arange(9.0)
    assert conformal_quantile(nine, 0.1) == 8.0
    assert conformal_quantile(nine[:8], 0.1) == math.inf
    assert conformal_quantile(nine[::-1], 0.5) == 4.0
    for n in range(1, 60):
        for alpha in (0.05, 0.1, 0.2, 0.3, 1 / 3, 0.5):
            # The smallest score that at least (1 - alpha) (n + 1) are not above, by counting.
            scores = np.arange(n, dtype=np.float64)
            ranks = [k for k in range(1, n + 1) if k >= (1 - alpha) * (n + 1) - 1e-9]
            expected = scores[ranks[0] - 1] if ranks else math.inf
            assert conformal_quantile(scores, alpha) == expected, (n, alpha)
    with pytest.raises(ConfigError, match="alpha is 0"):
        conformal_quantile(nine, 0.0)
    with pytest.raises(DataError, match="no calibration scores"):
        conformal_quantile(nine[:0], 0.1)


@pytest.mark.parametrize(("n", "alpha"), [(19, 0.1), (50, 0.1), (30, 0.25), (5, 0.1)])
def test_coverage_is_the_exact_one_and_within_the_guarantee(n: int, alpha: float) -> None:
    """Over 20,000 draws of exchangeable scores; 5 scores at 0.1 cover always."""
    rng = np.random.default_rng(0)
    scores = rng.exponential(size=(20_000, n + 1))
    covered = [row[-1] <= conformal_quantile(row[:-1], alpha) for row in scores]
    exact = expected_coverage(n, alpha)
    assert np.mean(covered) == pytest.approx(exact, abs=0.007)
    assert 1 - alpha <= exact < 1 - alpha + 1 / (n + 1) + 1e-12


def test_shares_by_hand() -> None:
    """Least score 0.2 between thresholds 0.1 and 0.6, sharpness 5."""
    at = Thresholds(0.1, 0.6)
    single, nothing = 1 / (1 + math.exp(0.5)), 1 / (1 + math.exp(2.0))
    shares = decision_shares(np.array([0.2]), at, 5.0)[0]
    assert shares.tolist() == pytest.approx([single, 1 - single - nothing, nothing])
    crossed = decision_shares(np.array([0.2]), Thresholds(0.6, 0.1), 5.0)[0]
    one, two = 1 / (1 + math.exp(-2.0)), 1 / (1 + math.exp(-0.5))
    assert crossed.tolist() == pytest.approx([one / (one + two), 0.0, two / (one + two)])
    hard = decision_shares(np.array([0.05, 0.2, 0.7]), at, math.inf)
    assert hard.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    open_ended = decision_shares(np.array([0.2]), Thresholds(0.1, math.inf), 5.0)[0]
    assert open_ended[2] == 0.0


def test_decisions_and_their_cost_by_hand() -> None:
    p = np.array([[0.9, 0.06, 0.04], [0.5, 0.45, 0.05], [0.35, 0.33, 0.32], [0.5, 0.45, 0.05]])
    label = np.array([1, 1, 0, 2])
    at = Thresholds(0.2, 0.6)
    rng = np.random.default_rng(0)
    d = decide(p, label, at, math.inf, rng)
    assert d.kind.tolist() == [0, 1, 2, 1] and d.size.tolist() == [1, 2, 0, 2]
    assert d.hit.tolist() == [False, True, False, False]
    c = AbstentionConfig()
    each = [1 + 0.3 - 0.4, 0.6 - 0.4, 0.3, 1 + 0.6 - 0.4]
    assert cost(d, c) == pytest.approx(np.mean(each))
    entropy = -(0.25 * math.log(0.25) * 2 + 0.5 * math.log(0.5))
    assert shaped_cost(d, c) == pytest.approx(np.mean(each) - 0.2 * entropy)
    sure = Decisions(np.zeros(4, int), np.ones(4, int), np.ones(4, bool))
    assert shaped_cost(sure, c) == pytest.approx(0.3 - 0.4 + 0.5 * 0.2)


def test_draws_follow_the_shares() -> None:
    rng = np.random.default_rng(1)
    p = np.tile([[0.8, 0.15, 0.05]], (40_000, 1))
    at = Thresholds(0.1, 0.6)
    kinds = decide(p, np.zeros(40_000, int), at, 5.0, rng).kind
    shares = decision_shares(np.array([0.2]), at, 5.0)[0]
    assert np.allclose(np.bincount(kinds) / 40_000, shares, atol=0.01)


@pytest.mark.long
def test_the_policy_walks_down_a_cost() -> None:
    """Where abstaining costs much, REINFORCE moves beta towards less of it, and the other way; it
    stays in its ranges and is the same for the same seed."""
    rng = np.random.default_rng(2)
    calibration = np.sort(rng.random(400))
    p = rng.dirichlet([2.0, 1.0, 1.0], 300)
    label = np.array([rng.choice(3, p=row) for row in p])
    base = AbstentionConfig(
        beta_range=(0.01, 0.6), start=(0.85, 0.3), step=0.02, learning_rate=1e-2,
        entropy_gain=0.0, single_cost=0.0, set_cost=1.0, coverage_gain=0.0, sharpness=20.0,
    )  # fmt: skip
    ends = {}
    for price in (0.0, 6.0):
        config = replace(base, abstention_cost=price)
        ends[price] = [learn_thresholds(calibration, p, label, config, s)[1] for s in range(6)]
        assert all(0.01 <= beta <= 0.6 for beta in ends[price])
    assert np.mean(ends[6.0]) + 0.1 < 0.3 < np.mean(ends[0.0]) - 0.1
    again = learn_thresholds(calibration, p, label, base, 0)
    assert again == learn_thresholds(calibration, p, label, base, 0)
    at = thresholds(calibration, 0.9, 0.1)
    assert at.predict < at.abstain == conformal_quantile(calibration, 0.1)


def test_risk_against_coverage() -> None:
    share, risk = risk_coverage(np.array([0.2, 0.9, 0.5]), np.array([False, True, False]))
    assert share.tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    assert risk.tolist() == pytest.approx([0, 1 / 2, 2 / 3])
    percent = np.array([0, 90, 50], np.uint8)
    assert risk_coverage(percent, np.array([0, 1, 0]))[1].tolist() == risk.tolist()


def test_scores_and_probabilities_that_are_none() -> None:
    for scores in ([0.1, np.nan, 0.3], [[0.1, 0.2]]):
        with pytest.raises(DataError, match="one number a row"):
            conformal_quantile(np.array(scores), 0.1)
    assert conformal_quantile(np.array([0.1, np.inf]), 0.5) == np.inf  # a label that cannot be
    for rows in ([[2.0, -1.0, 0.5]], [[0.7, 0.7]], [0.7, 0.3]):
        with pytest.raises(DataError, match="sum to 1"):
            label_scores(np.array(rows))


def test_marks_of_right_answers_may_be_numbers() -> None:
    confidence, right = np.array([0.2, 0.9, 0.5, 0.1]), np.array([0, 1, 0, 1])
    _, risk = risk_coverage(confidence, right)
    assert risk.tolist() == risk_coverage(confidence, right == 1)[1].tolist()
    assert risk.tolist() == pytest.approx([0, 1 / 2, 2 / 3, 1 / 2])
