"""GRPO-RoC and ARRoL against brute force, and what pruning does to simulated rollouts."""

import math
from itertools import combinations

import pytest
import torch

from mbrl.errors import CheckpointError, ConfigError
from mbrl.policy_gradient.schedulers import Outcome, Pool
from mbrl.policy_gradient.schedulers.pruning import (
    ARRoL,
    ARRoLConfig,
    GRPORoC,
    GRPORoCConfig,
    nearest_subset,
)
from tests.mbrl.policy_gradient.schedulers.simulated import generator


def kinds(right: int, size: int, keep: int, fewest: int) -> tuple[int, int]:
    """(right, wrong) that are kept of `size` with `right` right ones, as the authors count."""
    wrong = size - right
    of_wrong, of_right = round(wrong * keep / size), round(right * keep / size)
    if of_wrong <= min(fewest, wrong):
        of_wrong = min(fewest, wrong)
        of_right = keep - of_wrong
    if of_right <= min(fewest, right):
        of_right = min(fewest, right)
        of_wrong = keep - of_right
    return of_right, of_wrong


@pytest.mark.parametrize("fewest", [0, 1, 2])
@pytest.mark.parametrize("right", range(9))
def test_roc_keeps_the_best_right_answers(right: int, fewest: int) -> None:
    """Among all halves with these numbers of both kinds, the least penalty of right answers."""
    g = generator(right)
    one = GRPORoC(Pool(5), 16, 4, GRPORoCConfig(fewest=fewest))
    rewards = (torch.randperm(8, generator=g) < right).double()
    penalty = torch.rand(8, generator=g)
    kept = one.keep(Outcome(torch.full((8,), 3), rewards, {"penalty": penalty}), g)
    of_right, of_wrong = kinds(right, 8, 4, fewest)
    assert int((kept & (rewards > 0)).sum()) == of_right
    assert int((kept & (rewards == 0)).sum()) == of_wrong

    def cost(rows: tuple[int, ...]) -> float:
        return sum(float(penalty[i]) for i in rows if rewards[i] > 0)

    allowed = [
        rows
        for rows in combinations(range(8), 4)
        if sum(float(rewards[i]) for i in rows) == of_right
    ]
    assert cost(tuple(kept.nonzero().flatten().tolist())) == pytest.approx(min(map(cost, allowed)))


def test_roc_asks_for_twice_and_keeps_a_group() -> None:
    one, g = GRPORoC(Pool(20), 128, 8), generator()
    ids = one.request(g).each()
    assert len(ids) == 128 and torch.bincount(ids).max() == 16
    rewards = (torch.rand(128, generator=g) < 0.4).double()
    kept = one.keep(Outcome(ids, rewards, {"penalty": torch.rand(128, generator=g)}), g)
    assert all(int(kept[ids == i].sum()) == 8 for i in ids.unique())


@pytest.mark.parametrize("target", [0.5, 0.3, 0.9])
def test_survivors_are_the_subset_nearest_to_the_target(target: float) -> None:
    for seed in range(25):
        values = torch.rand(10, generator=generator(seed), dtype=torch.float64)
        for keep in (1, 3, 5, 9):
            kept = nearest_subset(values, keep, target)
            assert int(kept.sum()) == keep
            gap = abs(float(values[kept].mean()) - target)
            best = min(
                abs(sum(float(values[i]) for i in rows) / keep - target)
                for rows in combinations(range(10), keep)
            )
            assert best - 1e-12 <= gap <= best + 1 / 1024
    assert nearest_subset(torch.rand(4), 4, 0.5).tolist() == [True] * 4
    for keep in (0, 5):
        with pytest.raises(ConfigError, match="from 1 to 4"):
            nearest_subset(torch.rand(4), keep, 0.5)


def prefixes(count: int, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features [R, 3] of prefixes, true success probability [R] and rewards [R]."""
    x = torch.randn(count, 3, generator=g)
    p = torch.sigmoid(2.5 * x[:, 0] - 1.5 * x[:, 1] - 1.8).double()
    return x, p, torch.bernoulli(p, generator=g)


def test_pruned_groups_are_nearer_to_the_target_and_vary_more() -> None:
    one, g = ARRoL(3), generator(1)
    for _ in range(300):
        x, _, r = prefixes(32, g)
        one.update(x, r)
    x, p, r = prefixes(4000, g)
    guess = one.predict(x)
    assert float(((guess - p) ** 2).mean()) < 0.01
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):  # calibrated in five bins
        inside = (guess >= low) & (guess < low + 0.2)
        assert abs(float((guess[inside] - r[inside]).mean())) < 0.08
    pruned, chance = [], []
    for i in range(0, 4000, 16):
        kept = one.survivors(x[i : i + 16], 8)
        pruned.append(r[i : i + 16][kept])
        chance.append(r[i : i + 8])
    share, blind = torch.stack(pruned).mean(), torch.stack(chance).mean()
    assert abs(float(share) - 0.5) < 0.06 < 0.15 < abs(float(blind) - 0.5)
    # Half of the tokens after the checkpoint are saved, and groups keep more variance.
    variance = torch.stack(pruned).var(1).mean()
    assert float(variance) > 1.1 * float(torch.stack(chance).var(1).mean())


def test_calibration_is_the_posterior_of_a_bin() -> None:
    one = ARRoL(1, ARRoLConfig(bins=2, strength=3.0, discount=0.5))
    one.weight = torch.tensor([1.0, 0.0]).double()
    x = torch.tensor([[-2.0], [2.0], [1.0]])
    one.update(x, torch.tensor([1.0, 1.0, 0.0]))
    assert one.counts.tolist() == [[1.0, 1.0], [0.0, 1.0]]
    one.weight = torch.tensor([1.0, 0.0]).double()
    s = 1 / (1 + math.exp(-2))
    expected = [(1 + 3 * (1 - s)) / 4, (1 + 3 * s) / 5]
    assert one.predict(x[:2]).tolist() == pytest.approx(expected)
    other = ARRoL(1, ARRoLConfig(bins=2, strength=3.0))
    other.load_state_dict(one.state_dict())
    assert torch.equal(other.predict(x), one.predict(x))
    with pytest.raises(CheckpointError, match="same features"):
        ARRoL(2).load_state_dict(one.state_dict())
    with pytest.raises(ConfigError):
        ARRoL(0)
    with pytest.raises(ConfigError, match="target is 2"):
        ARRoL(1, ARRoLConfig(target=2.0))
