"""VADE's posteriors and WeightedPairs against closed forms and a pool that drifts."""

import pytest
import torch
from scipy import integrate, stats

from mbrl.policy_gradient.schedulers import Outcome, Pool
from mbrl.policy_gradient.schedulers.posteriors import VADE, VADEConfig, WeightedPairs
from mbrl.policy_gradient.schedulers.uniform import Uniform
from tests.mbrl.policy_gradient.schedulers.simulated import Prompts, generator


def test_without_forgetting_counts_are_the_conjugate_posterior() -> None:
    config = VADEConfig(prior=2.0, fast=1.0, slow=1.0)
    one, g = VADE(Pool(3), 6, 2, config), generator()
    for rewards in ([1.0, 0.0, 1.0], [1.0, 1.0, 0.0]):
        one.observe(Outcome(torch.tensor([1, 1, 2]), torch.tensor(rewards)), g)
    for i, answers in enumerate(([], [1, 0, 1, 1], [1, 0])):
        posterior = stats.beta(float(one.right[i]), float(one.wrong[i]))
        # The posterior by quadrature: prior density times the likelihood of every answer.
        like = lambda p, a=answers: (  # noqa: E731
            stats.beta(2, 2).pdf(p) * p ** sum(a) * (1 - p) ** (len(a) - sum(a))
        )
        total = integrate.quad(like, 0, 1)[0]
        for p in (0.2, 0.5, 0.7):
            assert posterior.pdf(p) == pytest.approx(like(p) / total, rel=1e-6)


def test_two_scales_of_forgetting() -> None:
    one, g = VADE(Pool(2), 4, 2, VADEConfig(prior=1.0, fast=0.5, slow=0.9)), generator()
    right, wrong = [1.0, 1.0], [1.0, 1.0]
    for n, r in ((4, 4), (2, 1), (0, 0), (0, 0), (3, 0)):
        ids = torch.zeros(n, dtype=torch.int64)
        rewards = (torch.arange(n) < r).double()
        # Prompt 1 is never answered and stays at its prior.
        one.observe(Outcome(ids, rewards), g)
        if n:
            right[0], wrong[0] = 0.5 * right[0] + r, 0.5 * wrong[0] + n - r
        else:
            right[0], wrong[0] = 1 + 0.9 * (right[0] - 1), 1 + 0.9 * (wrong[0] - 1)
    assert one.right.tolist() == pytest.approx(right) and one.wrong.tolist() == pytest.approx(wrong)


@pytest.mark.parametrize(("fast", "rounds"), [(0.0, 1), (0.5, 1200)])
@pytest.mark.parametrize("priority", ["variance", "information"])
def test_prompts_that_always_end_alike_can_be_drawn(
    fast: float, rounds: int, priority: str
) -> None:
    """The other count halves with every round; after 1,075 it is 0 in double precision."""
    one, g = VADE(Pool(3), 6, 2, VADEConfig(fast=fast, priority=priority)), generator()
    ids, rewards = torch.arange(3).repeat_interleave(2), torch.tensor([0.0, 0, 1, 1, 0, 1])
    for _ in range(rounds):
        one.observe(Outcome(ids, rewards), g)
    request = one.request(g)
    assert request.prompts.tolist() == [0, 1, 2] and request.rollouts.tolist() == [2, 2, 2]


@pytest.mark.parametrize("priority", ["variance", "information"])
def test_what_is_taken_has_the_largest_priority(priority: str) -> None:
    """Posteriors so narrow that what is drawn is their mean: at rates 0.3 and 0.6 variances are
    0.21 and 0.24, and 0.147 and 0.096 times one more rate of failure."""
    one = VADE(Pool(3), 2, 2, VADEConfig(priority=priority))
    one.right, one.wrong = (1e9 * torch.tensor(x).double() for x in ([3, 6, 9], [7, 4, 1]))
    assert one.request(generator()).prompts.tolist() == [0 if priority == "information" else 1]


@pytest.mark.parametrize("priority", ["variance", "information"])
def test_chosen_prompts_stay_near_the_best_rate_while_rates_drift(priority: str) -> None:
    """Rates move along sine waves; uniform sampling sits 0.3 from one half on average."""
    size, rounds, best = 200, 60, 0.5 if priority == "variance" else 1 / 3
    phase = 6.283 * torch.rand(size, generator=generator(3), dtype=torch.float64)

    def distance(one: VADE | Uniform) -> float:
        g, prompts, far = generator(4), Prompts(torch.zeros(size)), []
        for t in range(rounds):
            prompts.rate = 0.5 + 0.49 * torch.sin(phase + 0.04 * t)
            outcome = prompts.round(one, g)
            if t >= 10:
                far.append(float((prompts.rate[outcome.prompts] - best).abs().mean()))
        return sum(far) / len(far)

    mine = distance(VADE(Pool(size), 320, 8, VADEConfig(priority=priority)))
    even = distance(Uniform(Pool(size), 320, 8))
    assert even > 0.28
    assert mine < (0.67 if priority == "variance" else 0.9) * even
    # Posteriors that never forget lose the drift.
    stubborn = VADE(Pool(size), 320, 8, VADEConfig(fast=1.0, slow=1.0, priority=priority))
    assert mine < distance(stubborn) - 0.02


def test_pairs_take_a_hard_and_an_easy_half() -> None:
    rate = torch.linspace(0.0, 1.0, 101, dtype=torch.float64)
    one, g = WeightedPairs(Pool(101), 160, 8), generator()
    prompts = Prompts(rate)
    warm = Uniform(Pool(101), 101 * 8, 8)
    for _ in range(4):  # every prompt's rate is known
        one.observe(prompts.roll(warm.request(g)), g)
    hard_rates, easy_rates = [], []
    for _ in range(20):
        outcome = prompts.round(one, g)
        ids = outcome.prompts.unique()
        hard = one.hard(ids)
        assert abs(int(hard.sum()) - int((~hard).sum())) <= 4
        hard_rates += rate[ids[hard]].tolist()
        easy_rates += rate[ids[~hard]].tolist()
    assert 0.1 < sum(hard_rates) / len(hard_rates) < 0.4
    assert 0.6 < sum(easy_rates) / len(easy_rates) < 0.9
    # Prompts that never or always succeed teach nothing: they are not drawn while others are there.
    seen = torch.tensor(hard_rates + easy_rates)
    assert float(((seen < 0.005) | (seen > 0.995)).double().mean()) < 0.02
