"""DARS, Reinforce-Ada and XRPO against tables, loops, and uniform sampling at equal cost."""

import math
from fractions import Fraction

import pytest
import torch
from scipy import stats

from mbrl.policy_gradient.schedulers import Outcome, Pool, Request, gather
from mbrl.policy_gradient.schedulers.extra_rollouts import (
    DARS,
    XRPO,
    DARSConfig,
    ReinforceAda,
    ReinforceAdaConfig,
    XRPOConfig,
    depth,
)
from mbrl.policy_gradient.schedulers.uniform import Uniform
from tests.mbrl.policy_gradient.schedulers.simulated import Prompts, generator, mixed_share


def table(n: int, k: int, schedule: str, std: bool, most: int) -> int:
    """Further rollouts after k of n successes, in exact arithmetic: the smallest count x with
    (n + x) S >= goal, where a root appears both sides are squared."""
    p = Fraction(k, n) if k else Fraction(1, 2 * n)
    if p >= Fraction(1, 2):
        return 0
    share = 2 * (1 - p) if schedule == "hardness" else Fraction(1)
    x = 0
    while x < most - n:
        if std:
            enough = (n + x) ** 2 * 4 * p * (1 - p) >= (share * n) ** 2
        else:
            enough = (n + x) * 2 * p * (1 - p) >= share * n / 2
        if enough:
            break
        x += 1
    return x


@pytest.mark.parametrize("schedule", ["equal", "hardness"])
@pytest.mark.parametrize("std", [False, True])
@pytest.mark.parametrize(("n", "most"), [(4, 16), (8, 32), (16, 40), (10, 1000)])
def test_depth_is_the_table(schedule: str, std: bool, n: int, most: int) -> None:
    accuracy = torch.arange(n + 1, dtype=torch.float64) / n
    found = depth(accuracy, n, DARSConfig(schedule, std, most))
    assert found.tolist() == [table(n, k, schedule, std, most) for k in range(n + 1)]


def test_depth_by_hand() -> None:
    # p = 1/4, 8 rollouts: S = 3/8, the sum is 3, the peak 4: (4 - 3) / (3/8) = 2.67.
    assert depth(torch.tensor([0.25]), 8, DARSConfig("equal")).tolist() == [3]
    # Hardness: 2 x 3/4 x 4 = 6: (6 - 3) / (3/8) = 8.
    assert depth(torch.tensor([0.25]), 8, DARSConfig("hardness")).tolist() == [8]


def test_dars_adds_to_hard_prompts_and_cuts_in_proportion() -> None:
    one, g = DARS(Pool(8), 8 * 16, 8, DARSConfig("hardness")), generator()
    ids = one.request(g).each()
    assert len(ids) == 64  # half of the budget
    right = torch.tensor([0, 1, 2, 3, 4, 6, 8, 8])
    rewards = torch.cat([(torch.arange(8) < k).double() for k in right])
    extra = one.more(Outcome(ids, rewards), g)
    assert extra is not None
    wanted = depth(right / 8, 8, DARSConfig("hardness")).double()
    assert int(wanted.sum()) == 59 and extra.total == 59  # all can be paid
    assert extra.prompts.tolist() == [0, 1, 2, 3]
    whole = Outcome(torch.cat([ids, extra.each()]), torch.zeros(64 + 59))
    assert one.more(whole, g) is None

    poor = DARS(Pool(8), 94, 8, DARSConfig("hardness", first=0.7))
    ids = poor.request(g).each()
    assert len(ids) == 64
    cut = poor.more(Outcome(ids, rewards), g)
    assert cut is not None and cut.total == 30
    exact = 30 * wanted[cut.prompts] / wanted.sum()
    assert float((cut.rollouts - exact).abs().max()) < 1


def test_reinforce_ada_has_more_mixed_groups_at_equal_cost() -> None:
    """Rates of a pool where half of the prompts are hard; groups of 4 are kept by both."""
    rate = torch.cat([torch.full((200,), 0.03), torch.linspace(0.05, 0.95, 200)])
    prompts, g = Prompts(rate), generator()
    config = ReinforceAdaConfig(step=4, passes=8, first=0.35)
    one = ReinforceAda(Pool(400), 640, 4, config)
    shares, costs, groups = [], 0, 0
    for _ in range(8):
        outcome = gather(one, prompts.roll, g)
        kept = one.keep(outcome, g)
        trained = Outcome(outcome.prompts[kept], outcome.rewards[kept])
        assert int(torch.bincount(trained.prompts).max()) == 4
        shares.append(mixed_share(trained))
        costs += len(outcome.prompts)
        groups += len(outcome.prompts.unique())
    even = Uniform(Pool(400), costs // 8, 4)
    plain = [mixed_share(gather(even, prompts.roll, g)) for _ in range(8)]
    mine, uniform = sum(shares) / 8, sum(plain) / 8
    assert uniform < 0.5 < mine
    # And in absolute numbers of groups that teach something, for the same rollouts.
    assert mine > 1.5 * uniform


@pytest.mark.parametrize("choice", ["balanced", "positive"])
def test_reinforce_ada_keeps_what_the_rule_says(choice: str) -> None:
    one, g = ReinforceAda(Pool(4), 64, 4, ReinforceAdaConfig(choice, step=8)), generator()
    rewards = [[0] * 8, [1] + [0] * 7, [1, 1, 1, 0, 0, 1, 1, 1], [1] * 8]
    ids = torch.arange(4).repeat_interleave(8)
    outcome = Outcome(ids, torch.tensor(rewards).flatten().double())
    live = {"balanced": [0, 1, 3], "positive": [0]}[choice]
    assert one.unfinished(outcome).tolist() == live
    more = one.more(outcome, g)
    assert more is not None and more.prompts.tolist() == live
    kept = one.keep(outcome, g)
    # All four wrong; one right and three wrong; the first two of each; all four right.
    expected = [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 3, 4], [0, 1, 2, 3]]
    for i, which in enumerate(expected):
        assert kept[8 * i : 8 * i + 8].nonzero().flatten().tolist() == which
    mean, std = one.statistics(outcome)
    assert mean[ids == 1].unique().tolist() == [1 / 8]
    assert float(std[8]) == pytest.approx(math.sqrt(7 / 8 * 1 / 8 * 8 / 7))


def test_xrpo_places_as_a_loop_does() -> None:
    g = generator(5)
    config = XRPOConfig(base=3, step=25, level=0.9, explore=0.2, first=0.5)
    one = XRPO(Pool(6), 60, 4, config)
    ids = torch.arange(6).repeat_interleave(3)
    rewards = torch.rand(18, generator=g, dtype=torch.float64)
    rewards[:3] = 0.4  # one prompt without spread
    found = one.more(Outcome(ids, rewards), g)
    assert found is not None and found.total == 25

    n, s = [3] * 6, [float(rewards[ids == i].std()) for i in range(6)]
    s[0] = 0.0

    def width(i: int, count: int) -> float:
        return float(stats.t.ppf(0.95, count - 1)) * s[i] / math.sqrt(count)

    for t in range(18, 43):
        gains = [
            width(i, n[i]) - width(i, n[i] + 1) + 0.2 * math.sqrt(math.log(1 + t) / n[i])
            for i in range(6)
        ]
        n[gains.index(max(gains))] += 1
    placed = torch.zeros(6, dtype=torch.int64).index_add(0, found.prompts, found.rollouts)
    assert placed.tolist() == [count - 3 for count in n]


def test_xrpo_gives_to_prompts_whose_rewards_vary() -> None:
    rate = torch.tensor([0.0, 1.0] * 10 + [0.5] * 10)
    one, prompts, g = (
        XRPO(Pool(30), 360, 4, XRPOConfig(base=6, explore=0.05)),
        Prompts(rate),
        generator(),
    )
    spent = torch.zeros(30)
    for _ in range(5):
        outcome = gather(one, prompts.roll, g)
        spent += torch.bincount(outcome.prompts, minlength=30)
        unsolved = one.unsolved(outcome)
        assert set(range(0, 20, 2)) <= set(unsolved.tolist())
        assert float(rate[unsolved].max()) < 1
    extra = spent - 5 * 6  # beyond the first pass
    assert float(extra[20:].mean()) > 2 * float(extra[:20].mean())


def test_nothing_more_is_asked_when_all_is_spent() -> None:
    g = generator()
    for one in (XRPO(Pool(4), 8, 4), ReinforceAda(Pool(4), 8, 4)):
        spent = Request.of(torch.tensor([0, 1]), 4).each()
        assert one.more(Outcome(spent, torch.zeros(8)), g) is None
