"""DR-RPO's worst cases against linear programs and convex programs, its optimum against an
enumeration of policies, and its learning against the optimum."""

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from scipy import optimize

from algorithms.dr_rpo import (
    DRRPO,
    DRRPOConfig,
    mirror_step,
    regularised,
    returns,
    robust_values,
    worst_expectation,
)
from mbrl.errors import ConfigError, DataError


def linear_program(values: np.ndarray, p: np.ndarray, radius: float) -> float:
    """Over q and the parts of q - p above and below 0."""
    n = len(p)
    eye = np.eye(n)
    equal = np.vstack([np.hstack([eye, -eye, eye]), np.repeat([1.0, 0.0, 0.0], n)[None]])
    limit = np.repeat([0.0, 0.5, 0.5], n)[None]
    found = optimize.linprog(
        np.concatenate([values, np.zeros(2 * n)]),
        A_ub=limit,
        b_ub=[radius],
        A_eq=equal,
        b_eq=np.append(p, 1.0),
    )
    return float(found.fun)


def test_total_variation_is_a_linear_program() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        values, p = 3 * rng.random(5), rng.dirichlet(np.ones(5))
        values[rng.integers(5)] = 0.0
        radius = rng.choice([0.0, 0.05, 0.3, 0.8, 1.0])
        got = worst_expectation(values, p, radius, "total_variation")
        assert got == pytest.approx(linear_program(values, p, radius), abs=1e-8)
        if radius == 0:
            assert got == pytest.approx(values @ p)
        if radius == 1:
            assert got == pytest.approx(0.0, abs=1e-12)
    two = np.array([0.0, 1.0])
    assert worst_expectation(two, np.array([0.3, 0.7]), 0.2, "total_variation") == pytest.approx(
        0.5
    )


@pytest.mark.parametrize("divergence", ["kl", "chi_square"])
def test_other_balls_against_a_convex_program(divergence: Any) -> None:
    rng = np.random.default_rng(1)
    for _ in range(6):
        values, p = 2 * rng.random(4), rng.dirichlet(5 * np.ones(4))

        def distance(q: np.ndarray, p: np.ndarray = p) -> float:
            q = np.clip(q, 1e-15, None)
            if divergence == "kl":
                return float((q * np.log(q / p)).sum())
            return float(((q - p) ** 2 / p).sum())

        found = optimize.minimize(
            lambda q, values=values: q @ values,
            p,
            bounds=[(0, 1)] * 4,
            constraints=[
                {"type": "eq", "fun": lambda q: q.sum() - 1},
                {"type": "ineq", "fun": lambda q: 0.1 - distance(q)},
            ],
            method="SLSQP",
            options={"ftol": 1e-13, "maxiter": 500},
        )
        got = worst_expectation(values, p, 0.1, divergence)
        assert got == pytest.approx(float(found.fun), abs=2e-4)


def test_regularised_policy_and_its_limits() -> None:
    q, reference = np.array([[1.0, 2.0, 0.5]]), np.array([[0.5, 0.2, 0.3]])
    policy, value = regularised(q, reference, 0.7)
    best = optimize.minimize(
        lambda p: -(p @ q[0] - 0.7 * (p * np.log(p / reference[0])).sum()),
        reference[0],
        bounds=[(1e-9, 1)] * 3,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        options={"ftol": 1e-13},
    )
    assert float(value[0]) == pytest.approx(-best.fun, abs=1e-7)
    assert policy[0] == pytest.approx(best.x, abs=1e-4)
    assert regularised(q, reference, 1e6)[0][0] == pytest.approx(reference[0], abs=1e-5)
    assert regularised(q, reference, 1e-3)[0][0] == pytest.approx([0, 1, 0], abs=1e-9)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_mirror_step_is_the_maximum_near_the_previous_policy(share: float) -> None:
    q, reference = np.array([1.0, 2.0, 0.5]), np.array([0.5, 0.2, 0.3])
    previous, eta = np.array([0.1, 0.3, 0.6]), 0.7

    def distance(p: np.ndarray, other: np.ndarray) -> float:
        return float((p * np.log(p / other)).sum())

    def objective(p: np.ndarray) -> float:
        near = distance(p, reference) + (1 - share) / share * distance(p, previous)
        return float(p @ q) - eta * near

    best = optimize.minimize(
        lambda p: -objective(p),
        reference,
        bounds=[(1e-9, 1)] * 3,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        options={"ftol": 1e-14},
    )
    log_policy, value = mirror_step(q[None], np.log(previous)[None], reference[None], eta, share)
    policy = np.exp(log_policy[0])
    assert policy == pytest.approx(best.x, abs=1e-4) and policy.sum() == pytest.approx(1.0)
    assert objective(policy) >= -best.fun - 1e-9
    assert float(value[0]) == pytest.approx(policy @ q - eta * distance(policy, reference))


def test_mirror_steps_with_the_same_values_go_to_the_optimum() -> None:
    """After k of them from the reference: reference exp((1 - (1 - c)^k) Q / eta) / Z, also where
    the reference leaves an action out; and a step of 1 is all the way."""
    q, reference = np.array([[1.0, 2.0, 0.5], [0.0, 3.0, 9.0]]), np.array([[0.5, 0.2, 0.3]] * 2)
    reference[1] = [0.4, 0.6, 0.0]
    with np.errstate(divide="ignore"):
        log_policy = np.log(reference)
    for k in range(1, 40):
        log_policy, value = mirror_step(q, log_policy, reference, 0.7, 0.2)
        expected = reference * np.exp((1 - 0.8**k) * q / 0.7)
        expected /= expected.sum(1, keepdims=True)
        assert np.exp(log_policy) == pytest.approx(expected, abs=1e-12)
    optimum, best = regularised(q, reference, 0.7)
    assert np.exp(log_policy) == pytest.approx(optimum, abs=1e-3) and (value <= best).all()
    assert value == pytest.approx(best, abs=1e-5)


def tabular(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three states, the last a fail state, two actions, two steps: a factor for each pair."""
    rng = np.random.default_rng(seed)
    features = np.eye(6).reshape(3, 2, 6)
    factors = rng.dirichlet(np.ones(3), size=(2, 6))
    factors[:, 4:] = [0.0, 0.0, 1.0]
    reward = rng.random((3, 2))
    reward[2] = 0.0
    return features, factors, reward


def test_optimum_against_all_policies() -> None:
    """Almost without regularisation: every deterministic policy of both steps, each valued by
    linear programs at every state and action."""
    features, factors, reward = tabular()
    config = DRRPOConfig(radius=0.25, temperature=1e-4, horizon=2)
    best = -np.inf
    for choice in itertools.product(range(2), repeat=4):
        value = np.zeros(3)
        for h in (1, 0):
            now = np.zeros(3)
            for s in range(2):
                a = choice[2 * h + s]
                now[s] = reward[s, a] + linear_program(value, factors[h, 2 * s + a], 0.25)
            value = now
        best = max(best, value[0])
    _, values = robust_values(features, factors, reward, config, np.full((3, 2), 0.5))
    assert values[0, 0] == pytest.approx(best, abs=2e-3)


def test_learning_comes_to_the_optimum() -> None:
    """With counts in the factors' own proportions and no bonus; and a bonus is optimistic."""
    features, factors, reward = tabular(1)
    for divergence in ("total_variation", "kl", "chi_square"):
        config = DRRPOConfig(divergence, radius=0.2, horizon=2, bonus=0.0, ridge=1e-6, grid=2001)  # type: ignore[arg-type]
        made = DRRPO(features, reward, config)
        made.counts[:] = 1e4 * factors.reshape(2, 3, 2, 3)
        policy, values = made.plan()
        expected = robust_values(features, factors, reward, config, made.reference)
        assert values == pytest.approx(expected[1], abs=2e-3)
        assert policy == pytest.approx(expected[0], abs=2e-2)
    hopeful = DRRPO(features, reward, DRRPOConfig(radius=0.2, horizon=2, bonus=0.5))
    hopeful.observe(0, 0, 1, 2)
    exact = robust_values(features, factors, reward, hopeful.config, hopeful.reference)[1]
    assert (hopeful.plan()[1][0] >= exact[0] - 1e-9).all()


def test_plans_of_mirror_steps() -> None:
    """The first three against a loop over known factors, then the robust optimum; from a copy the
    next plan is the same."""
    features, factors, reward = tabular(1)
    config = DRRPOConfig(radius=0.2, horizon=2, bonus=0.0, ridge=1e-6, grid=2001, mirror=0.3)
    made = DRRPO(features, reward, config)
    made.counts[:] = 1e4 * factors.reshape(2, 3, 2, 3)
    policy = np.full((2, 3, 2), 0.5)
    for _ in range(3):
        value = np.zeros(3)
        for h in (1, 0):
            now = np.zeros(3)
            for s in range(3):
                worst = [linear_program(value, factors[h, 2 * s + a], 0.2) for a in range(2)]
                q = reward[s] + np.array(worst)
                p = policy[h, s] ** 0.7 * (0.5 * np.exp(q / 0.1)) ** 0.3
                p = policy[h, s] = p / p.sum()
                now[s] = max(p @ q - 0.1 * (p * np.log(p / 0.5)).sum(), 0.0)
            value = now
        got, values = made.plan()
        assert got == pytest.approx(policy, abs=2e-2)
        assert values[0] == pytest.approx(value, abs=2e-3)
    other = pickle.loads(pickle.dumps(made))
    for mine, copied in zip(made.plan(), other.plan(), strict=True):
        assert np.array_equal(mine, copied)
    for _ in range(40):
        got, values = made.plan()
    best = robust_values(features, factors, reward, config, made.reference)
    assert got == pytest.approx(best[0], abs=2e-2) and values == pytest.approx(best[1], abs=2e-3)


def test_without_a_mirror_step_nothing_is_kept() -> None:
    """Nor is what the reference never takes an obstacle."""
    features, _, reward = tabular()
    reference = np.array([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5]])
    made = DRRPO(features, reward, DRRPOConfig(radius=0.2, horizon=2), reference)
    kept = made.log_policy.copy()
    for first, second in zip(made.plan(), made.plan(), strict=True):
        assert np.isfinite(first).all() and np.array_equal(first, second)
    assert np.array_equal(made.log_policy, kept)


def test_a_policy_that_has_lost_its_purpose_counts_as_nothing() -> None:
    """Far from the reference where nothing is paid any more: E Q - eta KL is below 0."""
    made = DRRPO(np.ones((1, 2, 1)), np.zeros((1, 2)), DRRPOConfig(horizon=1, bonus=0, mirror=0.1))
    made.log_policy[:] = np.log([0.999, 0.001])
    policy, values = made.plan()
    assert policy[0, 0, 0] > 0.99 and values[0, 0] == 0.0


def test_bonus_is_a_sum_over_coordinates() -> None:
    """One pair seen three times: beta / sqrt(3 + ridge) at it, beta / sqrt(ridge) elsewhere."""
    features, _, reward = tabular()
    made = DRRPO(features, 0 * reward, DRRPOConfig(radius=0.0, horizon=1, bonus=0.3, ridge=2.0))
    for _ in range(3):
        made.observe(0, 1, 0, 2)
    policy, _ = made.plan()
    gap = np.log(policy[0, 1, 1] / policy[0, 1, 0]) * 0.1
    assert gap == pytest.approx(0.3 / np.sqrt(2) - 0.3 / np.sqrt(5))


def test_robust_policy_holds_where_the_world_shifts() -> None:
    """A step that pays more but leans on not failing: better as learned, worse once the factor of
    that action moves towards the fail state."""
    features = np.eye(6).reshape(3, 2, 6)
    factors = np.zeros((2, 6, 3))
    factors[:, 0], factors[:, 1] = [0, 1, 0], [0.5, 0.5, 0]
    factors[:, 2:4], factors[:, 4:] = [0, 1, 0], [0, 0, 1]
    reward = np.array([[0.0, 0.2], [1.0, 1.0], [0.0, 0.0]])
    reference = np.full((3, 2), 0.5)
    scores = {}
    shifted = factors.copy()
    shifted[0, 0] = [0, 0.5, 0.5]
    for radius in (0.0, 0.5):
        config = DRRPOConfig(radius=radius, temperature=0.01, horizon=2)
        policy, _ = robust_values(features, factors, reward, config, reference)
        scores[radius] = [returns(policy, features, f, reward, 0) for f in (factors, shifted)]
    assert scores[0.0][0] >= scores[0.5][0] - 1e-9
    assert scores[0.5][1] >= scores[0.0][1] - 1e-9


def test_refusals() -> None:
    features, _, reward = tabular()
    with pytest.raises(ConfigError, match=r"radius is 1\.5 with total_variation"):
        DRRPOConfig(radius=1.5)
    with pytest.raises(ConfigError, match="temperature is 0"):
        DRRPOConfig(temperature=0.0)
    with pytest.raises(ConfigError, match="mirror is 0"):
        DRRPOConfig(mirror=0.0)
    with pytest.raises(DataError, match="features must be at least 0 and sum to 1"):
        DRRPO(2 * features, reward)
    with pytest.raises(DataError, match=r"reward has shape \(2, 2\)"):
        DRRPO(features, reward[:2])
    with pytest.raises(DataError, match=r"it must lie in \[0, 1\]"):
        DRRPO(features, reward + 1)
    with pytest.raises(DataError, match="step is 3"):
        DRRPO(features, reward).observe(3, 0, 0, 0)
