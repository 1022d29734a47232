"""Bandit estimators against expectations over every outcome, and a regression against odds."""

import itertools
import math

import numpy as np
import pytest

from algorithms.evaluation.bandit import (
    ESTIMATORS,
    LIMITS,
    LoggedDecisions,
    evaluate,
    logistic_regression,
    slope,
)
from mbrl.errors import ConfigError

LOGGING = np.array([0.2, 0.5, 0.3])
TARGET = np.array([0.6, 0.1, 0.3])
MEAN = np.array([0.9, 0.2, 0.4])  # of the reward, which is 0 or 1
GUESS = np.array([0.5, 0.5, 0.1])  # a wrong model of it


def rounds(actions: np.ndarray, reward: np.ndarray, guess: np.ndarray = GUESS) -> LoggedDecisions:
    weight = (TARGET / LOGGING)[actions]
    return LoggedDecisions(reward, weight, guess[actions], np.full(len(actions), TARGET @ guess))


def expectation(name: str, limit: float, guess: np.ndarray = GUESS) -> float:
    """Over the three actions and both rewards."""
    total = 0.0
    for action, reward in itertools.product(range(3), (0.0, 1.0)):
        chance = LOGGING[action] * (MEAN[action] if reward else 1 - MEAN[action])
        one = rounds(np.array([action]), np.array([reward]), guess)
        total += chance * float(ESTIMATORS[name](one, limit)[0])
    return total


@pytest.mark.parametrize("name", ["ipw", "dr"])
def test_unbiased_whatever_the_model_says(name: str) -> None:
    assert expectation(name, math.inf) == pytest.approx(TARGET @ MEAN)


@pytest.mark.parametrize("name", ["dm", "dr", "switch_dr", "dr_os"])
def test_a_true_model_is_enough(name: str) -> None:
    assert expectation(name, 1.5, MEAN) == pytest.approx(TARGET @ MEAN)


def test_limits_go_from_the_model_to_doubly_robust() -> None:
    for name in ("switch_dr", "dr_os"):
        assert expectation(name, math.inf) == pytest.approx(expectation("dr", math.inf))
        assert expectation(name, 1e-9) == pytest.approx(TARGET @ GUESS, abs=1e-6)
    # weights 3, 0.2, 1: a limit of 2 takes the first action from the model alone
    kept = LOGGING[1:] * (TARGET / LOGGING)[1:] * (MEAN - GUESS)[1:]
    assert expectation("switch_dr", 2.0) == pytest.approx(TARGET @ GUESS + kept.sum())
    weight = TARGET / LOGGING
    shrunk = LOGGING * 2 * weight / (weight**2 + 2) * (MEAN - GUESS)
    assert expectation("dr_os", 2.0) == pytest.approx(TARGET @ GUESS + shrunk.sum())


def test_self_normalised_ones_ignore_the_scale_of_the_weights() -> None:
    random = np.random.default_rng(0)
    some = rounds(random.choice(3, 50, p=LOGGING), random.integers(0, 2, 50).astype(float))
    scaled = LoggedDecisions(some.reward, 7 * some.weight, some.q, some.v)
    for name in ("snipw", "sndr"):
        assert evaluate(some, name).value == pytest.approx(evaluate(scaled, name).value)
    assert evaluate(scaled, "ipw").value == pytest.approx(7 * evaluate(some, "ipw").value)


def test_intervals_cover_as_often_as_they_say() -> None:
    random, truth = np.random.default_rng(1), TARGET @ MEAN
    inside = dict.fromkeys(("ipw", "dr", "snipw", "sndr"), 0)
    for _ in range(400):
        actions = random.choice(3, 200, p=LOGGING)
        some = rounds(actions, (random.random(200) < MEAN[actions]).astype(float))
        for name in inside:
            result = evaluate(some, name, confidence=0.9)
            inside[name] += int(result.low <= truth <= result.high)
    for count in inside.values():
        assert 0.86 <= count / 400 <= 0.94  # 0.9 give or take two and a half of its errors


def test_slope_keeps_the_widest_where_the_others_disagree() -> None:
    """A model that is far off: small limits have little variance and a large bias."""
    random = np.random.default_rng(2)
    actions = random.choice(3, 20_000, p=LOGGING)
    reward = (random.random(20_000) < MEAN[actions]).astype(float)
    assert slope(rounds(actions, reward, np.full(3, -5.0)), "switch_dr", (0.5, 2.0, 10.0)) == 10.0
    # a true one: nothing is lost by the narrowest
    assert slope(rounds(actions, reward, MEAN), "switch_dr", (0.1, 2.0, 10.0)) == 0.1


def test_regression_gives_the_odds_of_a_table() -> None:
    """One binary feature: its probabilities are the shares, where nothing is penalised."""
    x = np.repeat([0.0, 1.0], [40, 60])[:, None]
    y = np.concatenate([np.repeat([0, 1], [30, 10]), np.repeat([0, 1], [12, 48])])
    fitted = logistic_regression(x, y, inverse_penalty=1e6)
    assert fitted(np.array([[0.0], [1.0]])) == pytest.approx([0.25, 0.8], abs=1e-4)
    # all penalty: the slope is nothing, and the intercept the share over all
    flat = logistic_regression(x, y, inverse_penalty=1e-6)
    assert flat(np.array([[0.0], [1.0]])) == pytest.approx([0.58, 0.58], abs=1e-4)


@pytest.mark.parametrize(("unit", "offset"), [(1.0, 1e6), (1e-6, 0.0), (1e6, -1e9)])
def test_logistic_regression_is_the_same_in_every_unit(unit: float, offset: float) -> None:
    draws = np.random.default_rng(0)
    x = np.column_stack([draws.normal(size=(200, 2)), np.full(200, 0.1)])
    y = draws.random(200) < 1 / (1 + np.exp(-x @ [1.0, -0.5, 0.0]))
    plain = logistic_regression(x, y, inverse_penalty=1.0)(x)
    moved = logistic_regression(unit * x + offset, y, inverse_penalty=1 / unit**2)
    assert moved(unit * x + offset) == pytest.approx(plain, abs=1e-6)
    with pytest.raises(ConfigError, match=r"give \[N, D\] and \[N\]"):
        logistic_regression(x, y[:, None])


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("reward", np.zeros((3, 1)), "all must be"),
        ("weight", np.array([1.0, np.inf, 1.0]), "not finite"),
        ("weight", np.array([1.0, -1.0, 1.0]), "negative"),
        ("q", np.zeros(2), "all must be"),
    ],
)
def test_what_is_no_log_is_refused(part: str, value: np.ndarray, words: str) -> None:
    parts = {name: np.ones(3) for name in ("reward", "weight", "q", "v")} | {part: value}
    with pytest.raises(ConfigError, match=words):
        LoggedDecisions(**parts)
    some = LoggedDecisions(*(np.ones(3) for _ in range(4)))
    with pytest.raises(ConfigError, match="unknown estimator"):
        evaluate(some, "dros")
    with pytest.raises(ConfigError, match="all above 0"):
        evaluate(some, "dr_os", limits=())
    assert len(LIMITS) == 8


def test_a_quotients_interval_knows_its_denominator() -> None:
    """Rewards that are all alike leave nothing to doubt, whatever the weights."""
    random = np.random.default_rng(0)
    some = rounds(random.choice(3, 50, p=LOGGING), np.ones(50))
    result = evaluate(some, "snipw")
    assert result.low == pytest.approx(1.0) == result.high


def test_what_cannot_be_estimated_is_refused() -> None:
    never = LoggedDecisions(np.ones(3), np.zeros(3), np.full(3, 0.5), np.full(3, 0.5))
    for name in ("snipw", "sndr"):
        with pytest.raises(ConfigError, match="all are 0"):
            evaluate(never, name)
    assert evaluate(never, "dm").value == 0.5
    for confidence in (0.0, 1.0, 95.0):
        with pytest.raises(ConfigError, match="between 0 and 1"):
            evaluate(rounds(np.array([0, 1, 2]), np.ones(3)), confidence=confidence)


def test_small_whole_numbers_are_numbers() -> None:
    """Clicks and predicted clicks, of one byte each."""
    clicks, always = np.array([0, 0, 1], np.uint8), np.ones(3, np.uint8)
    log = LoggedDecisions(clicks, always, always, always)
    assert evaluate(log, "dr").value == pytest.approx(1 / 3)  # it was 171
    assert evaluate(LoggedDecisions(clicks == 1, always, always == 1, always)).value == 1 / 3


def test_outcomes_and_limits_that_say_nothing_are_refused() -> None:
    x = np.arange(4.0)[:, None]
    with pytest.raises(ConfigError, match="outcome has -1; give 0 or 1"):
        logistic_regression(x, np.array([-1, 1, -1, 1]))
    logistic_regression(x, np.array([False, True, False, True]))
    with pytest.raises(ConfigError, match="features of row 2 are not finite"):
        logistic_regression(np.where(np.arange(4)[:, None] == 2, np.nan, x), np.array([0, 1, 0, 1]))
    for penalty in (0.0, -1.0, np.inf):
        with pytest.raises(ConfigError, match=f"inverse_penalty is {penalty}"):
            logistic_regression(x, np.array([0, 1, 0, 1]), penalty)
    one = rounds(np.array([0]), np.array([1.0]))
    for name in ("switch_dr", "dr_os"):
        with pytest.raises(ConfigError, match=f"{name} chooses its limit by the spread"):
            evaluate(one, name)
    assert math.isnan(evaluate(one, "dr").low)
