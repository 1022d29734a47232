"""PETS in multinomial simulations: majorities that agree with the infinite-sample majority."""

import math

import numpy as np
import pytest
import torch

from mbrl.errors import CheckpointError, ConfigError
from mbrl.policy_gradient.schedulers.self_consistency import (
    OnlineSelfConsistencyAllocation,
    OnlineSelfConsistencyConfig,
    SelfConsistencyAllocation,
    agreement,
    fitted_curves,
    majority_right,
)
from tests.mbrl.policy_gradient.schedulers.simulated import generator


def questions(count: int, seed: int) -> torch.Tensor:
    """[Q, 4] chances of answers from easy to nearly tied; the most likely answer is anywhere."""
    g = generator(seed)
    lead = 0.4 + 0.58 * torch.rand(count, generator=g)
    second = (1 - lead) * (0.6 + 0.4 * torch.rand(count, generator=g))
    rest = (1 - lead - second)[:, None] / 2
    law = torch.cat([lead[:, None], second[:, None], rest, rest], 1)
    order = torch.rand(count, 4, generator=g).argsort(1)
    return law.gather(1, order)


@pytest.mark.parametrize(
    ("counts", "sure", "gain"),
    [
        ((1, 1), 0.5, 0.25),
        ((2, 1), 0.75, 0.125),
        ((3, 1), 0.875, 0.0625),
        ((2, 2), 0.5, 0.1875),
        ((5, 1), 0.9688, 0.0156),
        ((3, 3), 0.5, 0.1562),
    ],
)
def test_two_options_by_hand(counts: tuple[int, int], sure: float, gain: float) -> None:
    """`counts` with the prior's."""
    own = torch.tensor([[c - 1 for c in counts]])
    assert float(agreement(own)) == pytest.approx(sure, abs=5e-5)
    one = SelfConsistencyAllocation(1, 2)
    one.counts = own.double()
    assert float(one.gain()) == pytest.approx(gain, abs=1e-4)


def test_agreement_is_the_chance_of_the_largest_share() -> None:
    draws = np.random.default_rng(0)
    for counts in ([4, 2, 1, 0], [1, 1, 1, 1], [0, 0, 0], [9, 8, 0]):
        shares = draws.dirichlet([c + 1.5 for c in counts], size=200_000)
        found = float(agreement(torch.tensor([counts]), 1.5))
        assert found == pytest.approx((shares.argmax(1) == np.argmax(counts)).mean(), abs=5e-3)


def test_the_next_question_is_the_one_with_the_largest_gain() -> None:
    one = SelfConsistencyAllocation(4, 3)
    one.counts = torch.tensor([[4.0, 0, 0], [2, 2, 0], [3, 2, 1], [30, 28, 0]]).double()
    gains = []
    for row in one.counts.tolist():
        votes = [[c + (i == k) for i, c in enumerate(row)] for k in range(3)]
        gains.append(float(agreement(torch.tensor(votes)).max() - agreement(torch.tensor([row]))))
    assert one.gain().tolist() == pytest.approx(gains, abs=1e-12)
    assert one.next(4).tolist() == sorted(range(4), key=lambda i: -gains[i])
    fresh = SelfConsistencyAllocation(3, 2)
    fresh.observe(torch.tensor([0, 2, 2]), torch.tensor([1, 0, 0]))
    assert fresh.next().tolist() == [1]  # not asked yet
    assert fresh.counts.tolist() == [[0, 1], [0, 0], [2, 0]]


@pytest.mark.long
def test_allocation_beats_uniform_at_equal_samples() -> None:
    """Agreement with the true majority of 300 questions at 6 answers each on average."""
    law, gained = questions(300, 1), []
    truth = law.argmax(1)
    for seed in range(3):
        g = generator(seed)
        one = SelfConsistencyAllocation(300, 4)
        for _ in range(6 * 300 // 20):
            ids = one.next(20)
            one.observe(ids, torch.multinomial(law[ids], 1, generator=g)[:, 0])
        assert int(one.counts.sum()) == 300 * 6
        flat = torch.multinomial(law, 6, replacement=True, generator=g)
        even = torch.nn.functional.one_hot(flat, 4).sum(1).argmax(1)
        mine = float((one.majority() == truth).double().mean())
        gained.append(mine - float((even == truth).double().mean()))
    assert sum(gained) / 3 > 0.015, gained


def test_budgets_are_the_best_within_the_mean() -> None:
    """Against all pairs of counts; the curves are concave, so that steps find the best."""
    curves, shares = [(0.9, 0.3), (0.25, -0.2)], [0.6, 0.4]
    for budget in (4.0, 6.0, 9.0, 20.0):
        config = OnlineSelfConsistencyConfig(budget=budget, most=40)
        one = OnlineSelfConsistencyAllocation(curves, shares, config)

        def chance(kind: int, k: int) -> float:
            a, b = curves[kind]
            return 0.5 * (1 + math.erf((a * math.sqrt(k) + b) / math.sqrt(2)))

        def worth(n: int, m: int) -> float:
            return 0.6 * chance(0, n) + 0.4 * chance(1, m)

        pairs = [
            (n, m) for n in range(4, 41) for m in range(4, 41) if 0.6 * n + 0.4 * m <= budget + 1e-9
        ]
        best = max(worth(*p) for p in pairs)
        easy, hard = one.budgets
        assert 0.6 * easy + 0.4 * hard <= budget + 1e-9
        # By whole steps a last answer may not fit.
        assert best - worth(easy, hard) < 3e-3
        assert hard >= easy
    assert one.wanted(["a"] * 4) == easy and one.wanted(["a", "a", "a", "b"]) == hard
    assert one.wanted(["a"] * 3) == 4 and one.wanted([*["a"] * 4, "b"]) == easy


def test_budgets_end_with_the_first_step_that_does_not_fit() -> None:
    """Not with the last one that would: the other kind gets nothing of what is left."""
    config = OnlineSelfConsistencyConfig(budget=4.5, most=40)
    one = OnlineSelfConsistencyAllocation([(0.9, 0.3), (0.25, -0.2)], [0.4, 0.6], config)
    assert one.accuracy(1, 5) - one.accuracy(1, 4) > one.accuracy(0, 5) - one.accuracy(0, 4)
    assert one.budgets == [4, 4]


def test_curves_are_those_of_their_kinds() -> None:
    """Sure questions are easy and rise to 1; torn ones are hard and rise slowly."""
    rng = np.random.default_rng(1)
    answers, right = [], []
    for chance in [0.98] * 20 + [0.55] * 20:
        own = rng.random(24) < chance
        answers.append(["r" if x else "w" for x in own])
        right.append(own.tolist())
    curves, shares = fitted_curves(answers, right, 4, rng)
    easy = (0.5 * 0.98**4 + 0.5 * (0.55**4 + 0.45**4), 0.0)
    assert shares[0] == pytest.approx(easy[0], abs=0.06) and sum(shares) == pytest.approx(1)
    one = OnlineSelfConsistencyAllocation(curves, shares)
    assert one.accuracy(0, 8) > 0.9 > one.accuracy(1, 8) > 0.5
    assert one.budgets[1] > one.budgets[0]
    with pytest.raises(ConfigError, match="3 answers to a question; give at least 5"):
        fitted_curves([["a"] * 3], [[True] * 3], 4, rng)


def test_online_budgets_beat_uniform_at_equal_answers() -> None:
    law, g, rng = questions(400, 2), generator(3), np.random.default_rng(4)
    pool = torch.multinomial(law, 40, replacement=True, generator=g).tolist()
    truth = law.argmax(1).tolist()
    good = [[x == t for x in own] for own, t in zip(pool, truth, strict=True)]
    curves, shares = fitted_curves(pool[:200], good[:200], 4, rng, 16)
    one = OnlineSelfConsistencyAllocation(
        curves, shares, OnlineSelfConsistencyConfig(budget=8.0, most=40)
    )
    spent, mine, even = [], [], []
    for own, fine in zip(pool[200:], good[200:], strict=True):
        n = one.wanted(own)
        spent.append(n)
        votes = list(zip(own, fine, strict=True))
        mine.append(majority_right(votes[:n]))
        even.append(majority_right(votes[:8]))
    assert sum(spent) / 200 == pytest.approx(8.0, abs=0.8)
    assert sum(mine) >= sum(even)


def test_majorities_and_ties() -> None:
    assert majority_right([("a", False), ("b", True), ("b", True)])
    assert not majority_right([("a", False), ("b", True)])  # of equal ones the first
    assert majority_right([("b", True), ("a", False)])


def test_states_and_settings() -> None:
    votes, same = SelfConsistencyAllocation(3, 2), SelfConsistencyAllocation(3, 2)
    votes.observe(torch.tensor([1]), torch.tensor([0]))
    same.load_state_dict(votes.state_dict())
    assert torch.equal(same.next(3), votes.next(3))
    with pytest.raises(CheckpointError, match="same questions"):
        SelfConsistencyAllocation(4, 2).load_state_dict(votes.state_dict())
    for settings in ({"warm_up": 9}, {"budget": 100.0}, {"most": 8}):
        with pytest.raises(ConfigError, match="give warm_up <= budget < most"):
            OnlineSelfConsistencyAllocation(
                [(1, 0), (1, 0)], [1, 1], OnlineSelfConsistencyConfig(**settings)
            )
    with pytest.raises(ConfigError, match="two of each"):
        OnlineSelfConsistencyAllocation([(1, 0)], [1])
    with pytest.raises(ConfigError):
        SelfConsistencyAllocation(3, 1)
