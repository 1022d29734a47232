"""Agents that play NEUBAY's bandit by Bayes' rule: against densities, enumerations, quadrature."""

import numpy as np
import pytest
import torch
from scipy import stats

from experiments.studies import bandit_world as world
from experiments.studies.bandit_oracle import Oracle


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


TWO = world.Members(
    mean=torch.tensor([[0.5, 0.9], [0.4, 0.1]]),
    std=torch.tensor([[0.3, 0.4], [0.2, 0.6]]),
    penalty=torch.tensor([0.05, 0.2]),
)


def observation(arm: int, reward: float) -> torch.Tensor:
    return torch.tensor([[0.0, float(arm == 0), float(arm == 1), reward]])


def test_the_posterior_is_bayes_rule() -> None:
    """After pulls of both arms: prior times the product of normal densities, normalised."""
    rng = np.random.default_rng(0)
    mean, std = rng.normal(0.5, 0.3, (7, 2)), rng.uniform(0.2, 1.0, (7, 2))
    members = world.Members(*(torch.tensor(a) for a in (mean, std)), torch.zeros(2))
    oracle = Oracle(members, "thompson", 10, 4)
    history = [(1, 1.0), (1, 0.0), (0, 1.0), (1, 1.0)]
    memory = oracle.see(observation(0, 0.0), None)
    assert torch.equal(memory.softmax(-1)[:, :7], torch.full((1, 7), 1 / 8))
    weights = np.ones(7)
    for pulls, (arm, reward) in enumerate(history, 1):
        memory = oracle.see(observation(arm, reward), memory)
        weights *= stats.norm(mean[:, arm], std[:, arm]).pdf(reward)
        result = memory[0, :-1].softmax(0).numpy()
        np.testing.assert_allclose(result, weights / weights.sum(), rtol=1e-6)
        assert memory[0, -1] == pulls


def test_thompson_takes_an_arm_as_often_as_it_is_likely_the_better() -> None:
    """Of two members the first prefers arm 1, by 0.4 less the penalties' 0.15."""
    oracle = Oracle(TWO, "thompson", 10, 4)
    memory = oracle.see(observation(0, 0.0).expand(20_000, 4), None)
    arm, memory = oracle.act(observation(1, 1.0).expand(20_000, 4), memory, seeded())
    density = [stats.norm(0.9, 0.4).pdf(1.0), stats.norm(0.1, 0.6).pdf(1.0)]
    share = density[0] / sum(density)
    assert float(arm.double().mean()) == pytest.approx(share, abs=0.012)
    dear = world.Members(TWO.mean, TWO.std, torch.tensor([0.0, 0.5]))
    arm, _ = Oracle(dear, "thompson", 10, 4).act(observation(0, 0.0).expand(50, 4), None, seeded())
    assert not arm.any()


def certain(first: float, second: float) -> world.Members:
    """Two members that disagree about arm 1 and whose rewards tell at once which is played."""
    mean = torch.tensor([[0.5, first], [0.5, second]])
    return world.Members(mean, torch.full((2, 2), 1e-3), torch.zeros(2))


@pytest.mark.parametrize(
    ("second", "left"), [(0.9, 40), (0.9, 2), (0.6, 2), (0.6, 6), (0.6, 40), (0.4, 9)]
)
def test_the_lookahead_against_an_enumeration(second: float, left: int) -> None:
    """One pull of arm 1 tells which member it is, so that of all plans a single pull is best, and
    no agent does better: expectimax over what is known."""
    oracle = Oracle(certain(0.2, second), "lookahead", left, 64)
    arm, _ = oracle.act(observation(0, 0.0).expand(5, 4), None, seeded())

    def best(known: int | None, pulls: int) -> tuple[float, int]:
        if pulls == 0:
            return 0.0, 0
        means = [0.2, second] if known is None else [[0.2, second][known]] * 2
        after = [best(k if known is None else known, pulls - 1)[0] for k in (0, 1)]
        values = (0.5 + best(known, pulls - 1)[0], np.mean(means) + np.mean(after))
        return max(values), int(np.argmax(values))

    expected, choice = best(None, left) if left < 12 else (0.0, 1)
    if left >= 12:  # the tree's closed form: one pull, then the better arm
        expected = max(left * 0.5, (0.2 + second) / 2 + (left - 1) * (0.5 + max(0.5, second)) / 2)
        choice = int(expected > left * 0.5)
    assert arm.tolist() == [choice] * 5
    if choice:
        plans = oracle.plans(torch.full((4000, 2), 0.5, dtype=torch.double), left, seeded(3))
        assert float(plans.mean(1).max()) == pytest.approx(expected, rel=5e-3)


def test_the_lookahead_knows_how_many_pulls_are_left() -> None:
    """Learning pays with six pulls left and no longer with two; pulls of arm 0 tell nothing."""
    oracle, memory = Oracle(certain(0.2, 0.6), "lookahead", 6, 64), None
    chosen = []
    for _ in range(6):
        arm, memory = oracle.act(observation(0, 0.5), memory, seeded())
        chosen.append(int(arm))
    assert chosen[0] == 1 and chosen[4:] == [0, 0]


def test_the_worth_of_a_plan_against_integration() -> None:
    """k = 1, three pulls left, two members with wide rewards: the expectation over the one reward
    by quadrature."""
    oracle = Oracle(TWO, "lookahead", 3, 64)
    weights = torch.tensor([[0.3, 0.7]], dtype=torch.double).expand(20_000, 2)
    mean, std, penalty = (t.numpy() for t in vars(TWO).values())
    grid = np.linspace(-6, 7, 20_001)
    joint = np.array(
        [w * stats.norm(mean[n, 1], std[n, 1]).pdf(grid) for n, w in ((0, 0.3), (1, 0.7))]
    )
    after = (joint / joint.sum(0)).T @ (mean - penalty)
    now = 0.3 * 0.7 + 0.7 * -0.1
    for k, result in zip((1, None), oracle.plans(weights, 3, seeded())[[0, -1]], strict=True):
        commit = np.trapezoid(joint.sum(0) * after.max(1), grid)
        expected = 3 * now if k is None else now + 2 * commit
        assert float(result.mean()) == pytest.approx(expected, abs=2e-3)
