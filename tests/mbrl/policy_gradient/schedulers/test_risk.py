"""MPTS: what it predicts of tasks it did not see, and what it takes."""

import pytest
import torch
from scipy.stats import spearmanr

from mbrl.policy_gradient.schedulers import Outcome, Pool
from mbrl.policy_gradient.schedulers.risk import MPTS, MPTSConfig
from tests.mbrl.policy_gradient.schedulers.simulated import generator


def world(shift: float) -> tuple[Pool, torch.Tensor]:
    """Two parameters of a task; its risk [N] is a valley that moves with `shift`."""
    features = torch.rand(400, 2, generator=generator(1)) * 2 - 1
    risk = (features[:, 0] - shift) ** 2 + 0.5 * features[:, 1].abs()
    return Pool(400, features), risk.double()


def run(one: MPTS, rounds: int, seed: int, *, moving: bool) -> tuple[list[float], list[float]]:
    """(rank correlation of predicted and true risk on all tasks, excess of the risk of the tasks
    that were taken over the mean) of every round but the first ten."""
    g, noise = generator(seed), generator(seed + 1)
    correlation, excess = [], []
    for t in range(rounds):
        _, risk = world(0.6 - 0.03 * t if moving else 0.3)
        if t >= 10:
            mean, _ = one.predict(torch.arange(400), g)
            correlation.append(float(spearmanr(mean, risk).statistic))
        ids = one.request(g).each()
        reward = -risk[ids] + 0.1 * torch.randn(len(ids), generator=noise)
        if t >= 10:
            excess.append(float((risk[ids].mean() - risk.mean()) / risk.std()))
        one.observe(Outcome(ids, reward), g)
    return correlation, excess


def test_predicted_risk_ranks_tasks_that_were_not_seen() -> None:
    config = MPTSConfig(steps=12, hidden=24, candidates=6)
    one = MPTS(world(0.0)[0], 64, 2, config)
    correlation, excess = run(one, 26, 0, moving=False)
    assert sum(correlation) / len(correlation) > 0.75
    assert min(correlation) > 0.5
    assert sum(excess) / len(excess) > 0.4  # half of the tasks are taken without looking


def test_predictions_follow_a_risk_that_moves() -> None:
    one = MPTS(world(0.0)[0], 64, 2, MPTSConfig(steps=12, hidden=24, candidates=6))
    correlation, excess = run(one, 40, 3, moving=True)
    assert sum(correlation) / len(correlation) > 0.5
    assert sum(excess) / len(excess) > 0.2


def test_before_the_first_round_tasks_are_random() -> None:
    one = MPTS(world(0.0)[0], 64, 2)
    assert one.request(generator(1)).total == 64
    draws = torch.stack(
        [torch.bincount(one.request(generator(i)).prompts, minlength=400) for i in range(40)]
    )
    assert int(draws.sum()) == 40 * 32 and int(draws.max()) == 1


def test_taken_tasks_are_the_riskiest_candidates_and_chance() -> None:
    config = MPTSConfig(candidates=400, evenly=0.25, draws=200)
    one, g = MPTS(world(0.0)[0], 32, 2, config), generator()
    run(one, 12, 0, moving=False)
    mean, std = one.predict(torch.arange(400), g)
    score = mean + std
    rank = torch.empty(400, dtype=torch.int64)
    rank[score.argsort(descending=True)] = torch.arange(400)
    ids = one.request(g).prompts
    assert int((rank[ids] < 30).sum()) >= 12  # of 16, up to the chance in the draws of z
    assert int((rank[ids] >= 30).sum()) >= 2


@pytest.mark.parametrize("value", [0.3, 1000.1, 123456.7])
def test_a_parameter_that_all_tasks_share_says_nothing(value: float) -> None:
    """However its mean is rounded, which a deviation of nothing would make large."""
    for size in (1, 37, 100):
        features = torch.rand(size, 1, generator=generator(1))
        shared = torch.full((size, 1), value)
        one = MPTS(Pool(size, torch.cat([features, shared], 1)), 8, 2)
        assert not one.features[:, 1].any() and bool(one.features.isfinite().all())
        assert torch.equal(one.features[:, :1], MPTS(Pool(size, features), 8, 2).features)
