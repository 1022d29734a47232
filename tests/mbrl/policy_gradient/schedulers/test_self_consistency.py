"""PETS in multinomial simulations: majorities that agree with the infinite-sample majority."""

import itertools

import pytest
import torch
from scipy import integrate, stats

from mbrl.errors import CheckpointError, ConfigError
from mbrl.policy_gradient.schedulers.self_consistency import (
    OnlineSelfConsistencyAllocation,
    OnlineSelfConsistencyConfig,
    SelfConsistencyAllocation,
    SelfConsistencyConfig,
    agreement,
)
from tests.mbrl.policy_gradient.schedulers.simulated import generator


def questions(count: int, seed: int) -> torch.Tensor:
    """[Q, 4] laws of answers from easy to nearly tied; the most likely answer is anywhere."""
    g = generator(seed)
    lead = 0.4 + 0.58 * torch.rand(count, generator=g)
    second = (1 - lead) * (0.6 + 0.4 * torch.rand(count, generator=g))
    rest = (1 - lead - second)[:, None] / 2
    law = torch.cat([lead[:, None], second[:, None], rest, rest], 1)
    order = torch.rand(count, 4, generator=g).argsort(1)
    return law.gather(1, order)


def test_agreement_is_the_posterior_probability_of_the_lead() -> None:
    for first, second in itertools.product(range(5), range(5)):
        a, b = max(first, second) + 1.5, min(first, second) + 1.5
        density = stats.beta(a, b).pdf
        expected = integrate.quad(density, 0.5, 1)[0]
        found = agreement(torch.tensor([[first, 0, second]]), 1.5)
        assert float(found) == pytest.approx(expected, rel=1e-5)


def test_the_next_question_is_the_one_with_the_largest_gain() -> None:
    one = SelfConsistencyAllocation(4, 3, SelfConsistencyConfig())
    one.counts = torch.tensor([[4.0, 0, 0], [2, 2, 0], [3, 2, 1], [30, 28, 0]]).double()

    def value(counts: list[float]) -> float:
        a, b = sorted(counts, reverse=True)[:2]
        return float(stats.beta(a + 1, b + 1).sf(0.5))

    gains = []
    for counts in one.counts.tolist():
        top = sorted(counts, reverse=True)
        votes = [[top[0] + 1, *top[1:]], [top[0], top[1] + 1, *top[2:]]]
        gains.append(max(value(v) for v in votes) - value(top))
    assert one.gain().tolist() == pytest.approx(gains, abs=1e-9)
    assert one.next(4).tolist() == sorted(range(4), key=lambda i: -gains[i])
    fresh = SelfConsistencyAllocation(3, 2)
    fresh.observe(torch.tensor([0, 2, 2]), torch.tensor([1, 0, 0]))
    assert fresh.next().tolist() == [1]  # not asked yet
    assert fresh.counts.tolist() == [[0, 1], [0, 0], [2, 0]]


def test_allocation_beats_uniform_at_equal_samples() -> None:
    """Agreement with the true majority of 300 questions at 6 and 10 answers each on average."""
    law = questions(300, 1)
    truth = law.argmax(1)
    for mean, least in ((6, 0.015), (10, 0.015)):
        gained = []
        for seed in range(4):
            g = generator(seed)
            one = SelfConsistencyAllocation(300, 4)
            for _ in range(mean * 300 // 20):
                ids = one.next(20)
                one.observe(ids, torch.multinomial(law[ids], 1, generator=g)[:, 0])
            assert int(one.counts.sum()) == 300 * mean
            flat = torch.multinomial(law, mean, replacement=True, generator=g)
            even = torch.nn.functional.one_hot(flat, 4).sum(1).argmax(1)
            mine = float((one.majority() == truth).double().mean())
            gained.append(mine - float((even == truth).double().mean()))
        assert sum(gained) / 4 > least, (mean, gained)


def test_stopping_is_the_best_of_all_rules() -> None:
    """At most five votes: every set of states to stop at, tried out on paths of votes."""
    config = OnlineSelfConsistencyConfig(budget=2.5, most=5, fewest=1, grid=3, observed=0.0)
    one = OnlineSelfConsistencyAllocation(config)
    shares, law = one.shares.tolist(), one.law.tolist()

    def worth(rule: set[tuple[int, int]], price: float) -> tuple[float, float]:
        """(rate of right answers minus the price, answers) of a rule on (lead, second)."""
        right = cost = 0.0
        for s, weight in zip(shares, law, strict=True):
            paths = {(0, 0): weight}
            for _ in range(5):
                following: dict[tuple[int, int], float] = {}
                for (a, b), chance in paths.items():
                    if (max(a, b), min(a, b)) in rule:
                        right += chance * ((a > b) + 0.5 * (a == b))
                        continue
                    cost += chance
                    for at, p in (((a + 1, b), s), ((a, b + 1), 1 - s)):
                        following[at] = following.get(at, 0.0) + chance * p
                paths = following
            right += sum(chance * (a > b) for (a, b), chance in paths.items())
        return right - price * cost, cost

    states = [(a, b) for a in range(5) for b in range(a + 1) if 1 <= a + b <= 4]
    rules = [
        {s for s, bit in zip(states, bits, strict=True) if bit}
        for bits in itertools.product((0, 1), repeat=len(states))
    ]
    for price in (0.005, 0.02, 0.05):
        stops, cost = one.solve(price)
        mine = {s for s in states if stops[s]}
        best = max(worth(rule, price)[0] for rule in rules)
        found, spent = worth(mine, price)
        assert found == pytest.approx(best, abs=1e-12)
        assert spent == pytest.approx(cost)


def test_the_first_price_spends_the_budget() -> None:
    for budget in (4.0, 8.0, 20.0):
        one = OnlineSelfConsistencyAllocation(OnlineSelfConsistencyConfig(budget=budget))
        _, cost = one.solve(one.price)
        assert 0.8 * budget < cost <= budget
        assert one.enough(torch.tensor([9.0, 0, 0])) and not one.enough(torch.tensor([1.0, 0, 0]))


def stream(
    one: OnlineSelfConsistencyAllocation | None, mean: int, law: torch.Tensor, seed: int
) -> tuple[float, float]:
    """(rate of right majorities, answers per question)"""
    g, right, spent = generator(seed), 0, 0
    for row in law:
        counts = torch.zeros(4)
        while not one.enough(counts) if one else int(counts.sum()) < mean:
            counts[int(torch.multinomial(row, 1, generator=g))] += 1
        right += int(counts.argmax() == row.argmax())
        spent += int(counts.sum())
        if one:
            one.finish(counts)
    return right / len(law), spent / len(law)


def test_online_stopping_beats_uniform_with_more_answers() -> None:
    law, gained = questions(400, 2), []
    for seed in (3, 4):
        mine, cost = stream(
            OnlineSelfConsistencyAllocation(OnlineSelfConsistencyConfig(budget=9.0)), 0, law, seed
        )
        assert 8.5 < cost < 9.3
        gained.append(mine - stream(None, 10, law, seed + 10)[0])
    assert sum(gained) / 2 > 0.015


def test_states_and_settings() -> None:
    one = OnlineSelfConsistencyAllocation()
    one.finish(torch.tensor([2.0, 1.0]))
    other = OnlineSelfConsistencyAllocation()
    other.load_state_dict(one.state_dict())
    assert other.price == one.price and torch.equal(other.stops, one.stops)
    with pytest.raises(CheckpointError, match="another grid"):
        OnlineSelfConsistencyAllocation(OnlineSelfConsistencyConfig(grid=5)).load_state_dict(
            one.state_dict()
        )
    votes, same = SelfConsistencyAllocation(3, 2), SelfConsistencyAllocation(3, 2)
    votes.observe(torch.tensor([1]), torch.tensor([0]))
    same.load_state_dict(votes.state_dict())
    assert torch.equal(same.next(3), votes.next(3))
    with pytest.raises(CheckpointError, match="same questions"):
        SelfConsistencyAllocation(4, 2).load_state_dict(votes.state_dict())
    for settings in ({"fewest": 9}, {"budget": 100.0}, {"observed": 2.0}, {"law": (0.0, 1.0)}):
        with pytest.raises(ConfigError):
            OnlineSelfConsistencyAllocation(OnlineSelfConsistencyConfig(**settings))
    with pytest.raises(ConfigError):
        SelfConsistencyAllocation(3, 1)
