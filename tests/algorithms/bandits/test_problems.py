"""Problems with known expected rewards: closed forms against loops and against draws."""

import math

import pytest
import torch

from algorithms.bandits.problems import Labels, Linear, PaymentRouter
from mbrl.errors import DataError


def test_payments_by_a_loop() -> None:
    p = PaymentRouter()
    card, region = torch.tensor([0, 2, 1]), torch.tensor([2, 0, 1])
    amount = torch.tensor([20.0, 100.0, 47.0])
    rounds = p.rounds(card, region, amount)
    for i in range(3):
        m = float(amount[i])
        for k in range(5):
            logit = float(p.BASE[k] + p.CARD[k, card[i]] + p.REGION[k, region[i]])
            approved = 1 / (1 + math.exp(-(logit - 0.8 * (m - 60) / 40 * float(p.STEEP[k]))))
            earned = (0.08 - float(p.SHARE[k])) * m - float(p.FEE[k])
            money = approved * earned - float(p.ATTEMPT[k])
            assert float(rounds.expected[i, k]) == pytest.approx((money + 0.15) / 8.15, abs=1e-6)
    assert rounds.context[0].tolist() == pytest.approx([1, 0, 0, 0, 0, 1, 0, 0, 1] + [0] * 6 + [-1])


@pytest.mark.parametrize("problem", [PaymentRouter(), Linear()])
def test_means_of_draws_are_the_expected_rewards(problem) -> None:
    g = torch.Generator().manual_seed(0)
    rounds = problem.draw(200, g)
    assert rounds.context.shape == (200, problem.context_size)
    assert (rounds.gain <= 1).all() and (rounds.loss >= 0).all()
    for action in range(problem.actions):
        chosen = torch.full((200,), action)
        draws = [rounds.reward(chosen, torch.rand(200, generator=g)) for _ in range(400)]
        mean = torch.stack(draws).double().mean()
        assert float(mean) == pytest.approx(float(rounds.expected[:, action].mean()), abs=0.006)


def test_every_provider_is_best_for_some_payment() -> None:
    rounds = PaymentRouter().draw(20_000, torch.Generator().manual_seed(0))
    best = torch.bincount(rounds.expected.argmax(1), minlength=5)
    assert (best > 0).all() and int(best.max()) < 16_000


def test_linear_means_are_linear_and_probabilities() -> None:
    problem = Linear(4, 3, seed=1)
    rounds = problem.draw(50, torch.Generator().manual_seed(0))
    assert torch.allclose(rounds.context.norm(dim=1), torch.ones(50))
    assert torch.allclose(rounds.success, 0.5 + 0.4 * rounds.context @ problem.theta.T)


def test_labels_pay_for_the_right_name_and_passes_differ_in_order() -> None:
    features, label = torch.arange(6.0)[:, None], torch.tensor([0, 1, 2, 0, 1, 2])
    rounds = Labels(features, label).draw(12, torch.Generator().manual_seed(0))
    seen = rounds.context[:, 0]
    assert sorted(seen[:6].tolist()) == sorted(seen[6:].tolist()) == list(range(6))
    assert seen[:6].tolist() != seen[6:].tolist()
    right = label[seen.long()]
    assert torch.equal(rounds.reward(right, torch.rand(12)), torch.ones(12))
    assert torch.equal(rounds.reward((right + 1) % 3, torch.rand(12)), torch.zeros(12))
    with pytest.raises(DataError, match=r"labels lie in 0\.\.0"):
        Labels(features, torch.zeros(6))
