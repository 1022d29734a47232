"""Prompt-GDRO and Rollout-GDRO on bins of known rates, and against brute force."""

from itertools import product

import pytest
import torch

from mbrl.policy_gradient.schedulers import Pool
from mbrl.policy_gradient.schedulers.allocation import share_out, water_level
from mbrl.policy_gradient.schedulers.robust import PromptGDRO, PromptGDROConfig, RolloutGDRO, bin_of
from tests.mbrl.policy_gradient.schedulers.simulated import Prompts, generator

RATES = torch.tensor([0.1, 0.4, 0.6, 0.9]).repeat_interleave(50)


def test_weights_go_to_the_bin_that_stays_hard() -> None:
    one, prompts, g = PromptGDRO(Pool(200), 320, 8), Prompts(RATES), generator()
    drawn = torch.zeros(200)
    for t in range(80):
        outcome = prompts.round(one, g)
        if t >= 40:
            drawn += torch.bincount(outcome.prompts, minlength=200) / 8
    chance, bins = one.probabilities()
    assert float(chance.sum()) == pytest.approx(1.0)
    assert chance.argmax() == 0 and float(chance[0]) > 0.6
    assert bool((chance[:-1] >= chance[1:] - 0.02).all())
    # Truly hard prompts are drawn more than twice their share of a quarter.
    assert float(drawn[:50].sum() / drawn.sum()) > 0.5
    assert int((bins[:50] == 0).sum()) > 40


def test_weights_do_not_go_to_bins_for_being_large() -> None:
    """With the same loss everywhere, a bin of nine in ten prompts gets no more than its fellow."""
    rate = torch.cat([torch.full((180,), 0.3), torch.full((20,), 0.7)])
    prompts, g = Prompts(rate), generator()
    one = PromptGDRO(Pool(200), 640, 8, PromptGDROConfig(bins=2, forget=0.2))
    chances = []
    for t in range(60):
        prompts.round(one, g)
        if t >= 30:
            chances.append(one.probabilities()[0])
    mean = torch.stack(chances).mean(0)
    # Losses 0.7 and 0.3, steady log-weights 0.5 x loss / 0.2: a gap of 1.
    assert float((mean[0] - 0.05) / (mean[1] - 0.05)) == pytest.approx(2.718, rel=0.35)


def test_rollouts_fill_the_budget_at_one_price() -> None:
    one, prompts, g = RolloutGDRO(Pool(200), 640, 8), Prompts(RATES), generator()
    for _ in range(30):
        outcome = prompts.round(one, g)
        assert len(outcome.prompts) == 640  # the sum over prompts, that is over bins n_b q_b
    one.epochs.order = torch.arange(200)[torch.randperm(200, generator=g)]
    bins_all = bin_of(torch.tensor([one.tracker.value(i) for i in range(200)]).double(), 4)
    request = one.request(g)
    bins = bins_all[request.prompts]
    root = one.variances.sqrt()
    for b in range(4):
        n = request.rollouts[bins == b].double()
        if len(n):  # n = root of variance / price, to rounding
            exact = float((root[b] / one.price**0.5).clamp(2, 64))
            assert float((n - exact).abs().max()) <= 1.0 + 1e-9
    # Prompts whose rewards vary get more than those that almost never, or almost always, succeed.
    middle = request.rollouts[(bins == 1) | (bins == 2)].double().mean()
    ends = request.rollouts[(bins == 0) | (bins == 3)].double().mean()
    assert float(middle) > 1.2 * float(ends)
    # The variance of the gradient's mean is below that of equal groups.
    variance = (RATES * (1 - RATES)).double()[request.prompts]
    assert float((variance / request.rollouts).sum()) < float((variance / 8).sum())


def test_shares_by_root_variance_are_the_best_there_are() -> None:
    """All whole allocations of 24 rollouts to four prompts."""
    variance = torch.tensor([0.02, 0.09, 0.16, 0.25], dtype=torch.float64)
    found = share_out(variance.sqrt(), 24, 2, 12)

    def cost(n: tuple[int, ...]) -> float:
        return float((variance / torch.tensor(n)).sum())

    best = min(cost(n) for n in product(range(2, 13), repeat=4) if sum(n) == 24)
    assert cost(tuple(found.tolist())) <= best * 1.01
    low, high = torch.full((4,), 2.0).double(), torch.full((4,), 12.0).double()
    level = water_level(variance.sqrt(), 24, low, high)
    assert float((level * variance.sqrt()).clamp(2, 12).sum()) == pytest.approx(24)


@pytest.mark.parametrize("faint", [1e-12, 1e-60, 1e-150, 1e-300])
def test_a_weight_next_to_nothing_takes_no_more_than_its_least(faint: float) -> None:
    """As the root of a bin's variance where all earn the same, which fades in every round: the
    others' shares stay those of 2 to 1."""
    weights = torch.tensor([0.5, 0.25, faint], dtype=torch.float64)
    assert share_out(weights, 26, 2, 64).tolist() == [16, 8, 2]
    low, high = torch.full((3,), 2.0).double(), torch.full((3,), 64.0).double()
    assert water_level(weights, 26, low, high) == pytest.approx(32)
