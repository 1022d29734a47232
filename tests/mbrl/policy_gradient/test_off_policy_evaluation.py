"""Off-policy evaluation against loops, exact values of a small world and classical intervals."""

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from experiments.studies import evaluation_coverage as worlds
from mbrl.errors import ConfigError
from mbrl.policy_gradient.off_policy_evaluation import ESTIMATORS, Logged, evaluate


def logged(episodes: int = 7, seed: int = 0, steps: int = 5) -> Logged:
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, steps + 1, (episodes,), generator=g)
    mask = torch.arange(steps) < lengths[:, None]
    junk = torch.where(mask, 0.0, torch.nan)
    fields = {
        name: torch.randn(episodes, steps, generator=g, dtype=torch.float64) + junk
        for name in ("log_ratio", "reward", "q", "v")
    }
    return Logged(mask=mask, gamma=0.9, **fields)


def slow(data: Logged, name: str) -> float:
    """The formulas as they stand in the papers, episode by episode and step by step."""
    episodes = []
    for b in range(len(data.mask)):
        rows, weight, passed = [], 1.0, 0.0
        for t in range(data.mask.shape[1]):
            before = weight
            if data.mask[b, t]:
                weight *= math.exp(data.log_ratio[b, t])
                assert data.q is not None and data.v is not None
                known = [float(x[b, t]) for x in (data.reward, data.q, data.v)]
            else:
                known = [0.0, 0.0, 0.0]
            rows.append((before, weight, *known, 0.9**passed))
            passed += 1.0 if data.duration is None else float(data.duration[b, t])
        episodes.append(rows)
    n = len(episodes)
    last = [rows[-1][1] for rows in episodes]
    returns = [sum(g * r for _, _, r, _, _, g in rows) for rows in episodes]
    if name == "importance_sampling":
        return sum(w * x for w, x in zip(last, returns, strict=True)) / n
    if name == "weighted_importance_sampling":
        return sum(w * x for w, x in zip(last, returns, strict=True)) / sum(last)
    if name == "per_decision":
        return sum(g * w * r for rows in episodes for _, w, r, _, _, g in rows) / n
    if name == "doubly_robust":
        # The recursion of the paper, from the last step to the first.
        total = 0.0
        for rows in episodes:
            value, following = 0.0, rows[-1][-1]
            for before, weight, r, q, v, g in reversed(rows):
                ratio = weight / before
                value, following = v + ratio * (r + following / g * value - q), g
            total += value
        return total / n
    total = 0.0
    for column in zip(*episodes, strict=True):
        now, earlier = sum(c[1] for c in column), sum(c[0] for c in column)
        for before, weight, r, q, v, g in column:
            if name == "weighted_per_decision":
                total += g * weight / now * r
            else:
                total += g * (weight / now * (r - q) + before / earlier * v)
    return total


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@pytest.mark.parametrize("timed", [False, True])
def test_estimators_equal_loops(name: str, timed: bool) -> None:
    """With steps of one length, and of lengths from 0.5 to 3."""
    for seed in range(4):
        data = logged(seed=seed)
        if timed:
            lengths = 0.5 + 2.5 * torch.rand(data.mask.shape, dtype=torch.float64)
            data = dataclasses.replace(data, duration=lengths)
        assert evaluate(data, name, draws=2).value == pytest.approx(slow(data, name), rel=1e-9)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_an_episode_that_counts_twice_is_there_twice(name: str) -> None:
    data = logged(4)
    twice = torch.tensor([0, 1, 1, 3])
    again = Logged(
        *(getattr(data, f)[twice] for f in ("log_ratio", "reward", "mask")),
        data.gamma,
        *(getattr(data, f)[twice] for f in ("q", "v")),
    )
    count = torch.tensor([[1.0, 2.0, 0.0, 1.0]], dtype=torch.float64)
    ones = torch.ones(1, 4, dtype=torch.float64)
    torch.testing.assert_close(ESTIMATORS[name](data, count), ESTIMATORS[name](again, ones))


@pytest.mark.parametrize("name", ["importance_sampling", "per_decision", "doubly_robust"])
def test_unbiased_over_all_episodes_of_a_world(name: str) -> None:
    """Every episode of two steps, weighted by its probability under the behaviour policy, with
    values that are wrong."""
    g = torch.Generator().manual_seed(1)
    world = worlds.build(2, 1.0, g)
    guess = world.q + torch.randn(world.q.shape, generator=g, dtype=torch.float64)
    value = (world.target * guess).sum(-1)
    total = 0.0
    states, actions = range(worlds.STATES), range(worlds.ACTIONS)
    for s, a, s2, a2 in itertools.product(states, actions, states, actions):
        chance = float(
            world.start[s]
            * world.behaviour[s, a]
            * world.transition[s, a, s2]
            * world.behaviour[s2, a2]
        )
        ratio = (world.target / world.behaviour).log()
        for lived in (True, False):  # whether the episode reaches its second step
            data = Logged(
                torch.stack([ratio[s, a], ratio[s2, a2]])[None],
                torch.stack([world.reward[s, a], world.reward[s2, a2]])[None],
                torch.tensor([[True, lived]]),
                worlds.GAMMA,
                torch.stack([guess[0, s, a], guess[1, s2, a2]])[None],
                torch.stack([value[0, s], value[1, s2]])[None],
            )
            share = (1 - worlds.ENDS) if lived else worlds.ENDS
            total += chance * share * evaluate(data, name, draws=1).value
    assert total == pytest.approx(world.value, rel=1e-9)


def test_exact_values_leave_doubly_robust_only_the_noise_of_the_world() -> None:
    g = torch.Generator().manual_seed(2)
    world = worlds.build(8, 0.8, g)
    data = worlds.logged(world, worlds.simulate(world, 400, 8, g), world.q, world.v)
    blind = Logged(
        data.log_ratio, data.reward, data.mask, data.gamma, data.reward * 0, data.reward * 0
    )
    errors = [abs(evaluate(d, "doubly_robust", draws=2).value - world.value) for d in (data, blind)]
    assert errors[0] < errors[1]
    widths = [e.high - e.low for e in (evaluate(d, "doubly_robust") for d in (data, blind))]
    assert widths[0] < 0.6 * widths[1]


def test_on_its_own_data_the_interval_is_students() -> None:
    g = torch.Generator().manual_seed(3)
    reward = torch.rand(40, 6, generator=g, dtype=torch.float64)
    data = Logged(torch.zeros_like(reward), reward, reward > -1, 0.8)
    found = evaluate(data, "importance_sampling", draws=20_000)
    returns = reward.numpy() @ 0.8 ** np.arange(6)
    low, high = stats.t.interval(0.95, 39, returns.mean(), stats.sem(returns))
    assert found.value == pytest.approx(returns.mean())
    assert found.effective_share == pytest.approx(1.0)
    assert (found.low, found.high) == pytest.approx((low, high), rel=5e-3)


def test_wrong_input_is_named() -> None:
    data = logged()
    with pytest.raises(ConfigError, match="did you mean 'per_decision'"):
        evaluate(data, "per_decisions")
    with pytest.raises(ConfigError, match="confidence is 1"):
        evaluate(data, "per_decision", confidence=1.5)
    with pytest.raises(ConfigError, match="gamma is 1"):
        Logged(data.log_ratio, data.reward, data.mask, 1.1)
    with pytest.raises(ConfigError, match="not finite"):
        Logged(data.log_ratio / 0, data.reward, data.mask, 0.9)
    with pytest.raises(ConfigError, match=r"\[episodes, steps\]"):
        Logged(data.log_ratio[:, :2], data.reward, data.mask, 0.9)
    for mask in (
        data.mask.float(),
        data.mask.long(),
        data.mask[:0],
        data.mask[:, :0],
        data.mask[0],
    ):
        with pytest.raises(ConfigError, match=r"give torch.bool \[episodes, steps\]"):
            Logged(data.log_ratio, data.reward, mask, 0.9)
    with pytest.raises(ConfigError, match="duration has -1"):
        Logged(data.log_ratio, data.reward, data.mask, 0.9, duration=-torch.ones(data.mask.shape))
    for estimator in ESTIMATORS.values():
        with pytest.raises(ValueError, match=r"count \[7\] for \[K, B\]"):
            estimator(data, torch.ones(7, dtype=torch.float64))
        with pytest.raises(ValueError, match="shapes do not fit together"):
            estimator(data, torch.ones(1, 6, dtype=torch.float64))
    bare = Logged(data.log_ratio, data.reward, data.mask, 0.9)
    with pytest.raises(ConfigError, match="need q"):
        evaluate(bare, "doubly_robust")
    assert math.isnan(evaluate(logged(1), "per_decision").low)


@pytest.mark.parametrize("name", ["importance_sampling", "per_decision", "doubly_robust"])
@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_weights_beyond_float64_are_refused(name: str, reward: float) -> None:
    """They were infinite, and times a return of 0 or beside another sign NaN."""
    ratio = torch.tensor([[2.0], [-0.1], [-0.2]], dtype=torch.float64).expand(3, 400)
    paid = torch.full_like(ratio, reward)
    data = Logged(ratio, paid, paid > -1, 0.9, paid, paid)
    with pytest.raises(ConfigError, match=r"reach e\^800"):
        evaluate(data, name)


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if "weighted" in name])
def test_weighted_estimates_of_draws_without_the_heaviest_episode(name: str) -> None:
    """They were 0 where its weight is e^700 of theirs, here in a third of the draws."""
    ratio = torch.tensor([[2.0], [-0.1], [-0.2]], dtype=torch.float64).expand(3, 400)
    reward = torch.zeros_like(ratio)
    reward[:, -1] = torch.tensor([100.0, 101.0, 102.0])
    data = Logged(ratio, reward, reward > -1, 1.0, 0 * reward, 0 * reward)
    draws = torch.tensor([[0.0, 2.0, 1.0], [0.0, 0.0, 3.0]], dtype=torch.float64)
    assert ESTIMATORS[name](data, draws).tolist() == pytest.approx([101.0, 102.0], abs=1e-9)
    found = evaluate(data, name)
    assert found.value == pytest.approx(100.0) and 90 < found.low < found.high < 110


def test_worlds_without_a_limit_and_their_transitions() -> None:
    """The value without a limit is that of very long episodes; what DICE sees is what happened."""
    g = torch.Generator().manual_seed(4)
    assert worlds.build(300, 0.8, g).value == pytest.approx(
        worlds.endless(worlds.build(1, 0.8, torch.Generator().manual_seed(4))), rel=1e-9
    )
    world = worlds.build(5, 0.8, g)
    found = worlds.simulate(world, 200, 5, g)
    t = worlds.dataset(found).transitions
    assert len(t) == int(found.mask.sum()) and len(t.episodes()) == 200
    lengths = found.mask.sum(1)
    for (a, b), episode in zip(t.episodes(), range(200), strict=True):
        assert b - a == int(lengths[episode])
        assert t.obs[a:b].argmax(1).tolist() == found.state[episode, : b - a].tolist()
        assert t.next_obs[a : b - 1].tolist() == t.obs[a + 1 : b].tolist()
        assert not t.ends[a : b - 1].any() and bool(t.terminated[b - 1] != t.truncated[b - 1])
        assert (b - a == 5) or bool(t.terminated[b - 1])
    share = float(t.terminated.double().mean())
    assert share == pytest.approx(worlds.ENDS, abs=0.03)


@pytest.mark.long
def test_a_correction_of_a_world_covers_its_value() -> None:
    found = worlds.measure(
        worlds.DEFAULTS | {"estimator": "dice", "steps": 40, "sets": 1}, 0, Path("unused")
    ).values
    assert abs(found["bias"]) < 0.15 and 0 < found["width"] < 0.5
    with pytest.raises(ConfigError, match=r"confidence is 0.9; DICE's intervals are of 0.95"):
        worlds.measure(worlds.DEFAULTS | {"estimator": "dice", "confidence": 0.9}, 0, Path("x"))
