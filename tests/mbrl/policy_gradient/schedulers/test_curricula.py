"""DRIVE, the growing horizon, DART and SCALER on simulated prompts."""

import pytest
import torch

from mbrl.errors import ConfigError
from mbrl.policy_gradient.schedulers import Outcome, Pool, gather
from mbrl.policy_gradient.schedulers.curricula import (
    DART,
    DRIVE,
    DARTConfig,
    DRIVEConfig,
    Horizon,
    Stage,
)
from mbrl.policy_gradient.schedulers.scaler import SCALER, SCALERConfig
from mbrl.policy_gradient.schedulers.scheduler import Scheduler
from mbrl.policy_gradient.schedulers.uniform import Uniform
from tests.mbrl.policy_gradient.schedulers.simulated import Prompts, generator

STAGES = (Stage(30, window=64), Stage(60, groups=8, hardest=0.25, window=128))


class Learner(Prompts):
    """A policy whose log-odds at a prompt grow with the sum of the sizes of its group's advantages:
    n times the deviation, which is 0 where all answers are alike."""

    def __init__(self, odds: torch.Tensor, gain: float) -> None:
        super().__init__(torch.sigmoid(odds))
        self.odds, self.gain = odds.double().clone(), gain

    def train(self, one: Scheduler, rounds: int, g: torch.Generator) -> int:
        cost = 0
        for _ in range(rounds):
            outcome = gather(one, self.roll, g)
            one.observe(outcome, g)
            cost += len(outcome.prompts)
            for i in outcome.prompts.unique().tolist():
                r = outcome.rewards[outcome.prompts == i]
                self.odds[i] += self.gain * len(r) * float(r.std(correction=0))
            self.rate = torch.sigmoid(self.odds)
        return cost


def test_two_stages_beat_one_at_equal_cost() -> None:
    odds = torch.linspace(-5.0, 2.0, 80)
    costs, rates = [], []
    for stages in (STAGES, (Stage(90),)):
        learner = Learner(odds, gain=0.05)
        one = DRIVE(Pool(80), 320, 8, DRIVEConfig(stages))
        costs.append(learner.train(one, 90, generator(1)))
        rates.append(learner.rate)
    assert costs[0] == costs[1] == 90 * 320
    hard = slice(0, 20)
    assert float(rates[0][hard].mean()) > float(rates[1][hard].mean()) + 0.1
    assert float(rates[0].mean()) > float(rates[1].mean())


def test_a_stage_keeps_some_of_the_stage_before() -> None:
    """Which are hardest is seen when a stage begins, among those that are left."""
    stages = (Stage(2), Stage(2, hardest=0.5), Stage(2, hardest=0.25))
    one, g = DRIVE(Pool(8), 64, 8, DRIVEConfig(stages)), generator()
    rate, seen = torch.arange(8) / 8, list[set[int]]()
    for turned in (False, False, False, True, True, False):
        if one.rounds == 5:
            again = DRIVE(Pool(8), 64, 8, DRIVEConfig(stages))
            again.load_state_dict(one.state_dict())
            assert sorted(again.hardest().tolist()) == sorted(one.hardest().tolist())
        outcome = gather(one, Prompts(1 - rate if turned else rate).roll, g)
        seen.append(set(outcome.prompts.tolist()))
        one.observe(outcome, g)
    assert [len(ids) for ids in seen] == [8, 8, 4, 4, 2, 2]
    assert seen[2] == seen[3] and seen[4] == seen[5] and seen[4] < seen[2]


def test_stages_follow_one_another() -> None:
    one, g = DRIVE(Pool(40), 128, 8, DRIVEConfig(STAGES)), generator()
    prompts = Prompts(torch.linspace(0, 1, 40))
    for t in range(34):
        assert one.stage == (t >= 30) and one.longest_turn == (128 if t >= 30 else 64)
        request = one.request(g)
        assert request.rollouts.tolist() == ([64] * 2 if t >= 30 else [8] * 16)
        if t >= 30:
            assert len(one.hardest()) == 10
            assert float(prompts.rate[one.hardest()].mean()) < 0.2
            assert set(request.prompts.tolist()) <= set(one.hardest().tolist())
        one.observe(prompts.roll(request), g)
    with pytest.raises(ConfigError, match="a later stage keeps at most as many"):
        DRIVE(Pool(9), 8, 8, DRIVEConfig((Stage(1, hardest=0.1), Stage(1))))
    with pytest.raises(ConfigError, match="groups from 1 to 1"):
        DRIVE(Pool(9), 8, 8, DRIVEConfig((Stage(1, groups=2),)))


def test_the_horizon_grows_by_stages() -> None:
    horizon = Horizon((5, 8, 12), 100)
    found = [horizon(step) for step in (0, 99, 100, 199, 200, 10_000)]
    assert found == [5, 5, 8, 8, 12, 12]
    assert [Horizon((2, 4, 4, 9), (3, 5, 6))(t) for t in range(8)] == [2, 2, 2, 4, 4, 4, 9, 9]
    assert Horizon((7,), 1)(3) == 7
    for lengths, every in (((), 1), ((3, 2), 1), ((0,), 1), ((1, 2), 0), ((1, 2, 3), (5, 5))):
        with pytest.raises(ConfigError):
            Horizon(lengths, every)


def test_dart_spends_less_on_what_is_solved() -> None:
    rate = torch.cat([torch.full((30,), 0.1), torch.full((30,), 1.0)])
    one, g = DART(Pool(60), 160, 8, DARTConfig()), generator(2)
    prompts = Prompts(rate)
    tasks = []
    for _ in range(25):
        outcome = prompts.round(one, g)
        tasks.append(len(outcome.prompts.unique()))
        assert 152 <= len(outcome.prompts) <= 160
    counts = one.counts()
    assert counts[:30].tolist() == [8] * 30 and int(counts[30:].max()) <= 3
    assert tasks[0] == 20 and sum(tasks[-5:]) / 5 > 28  # what is saved goes to further tasks
    # A pass still visits all tasks alike.
    seen = torch.zeros(60)
    for _ in range(20):
        seen[prompts.round(one, g).prompts.unique()] += 1
    assert int(seen.max() - seen.min()) <= 2


def test_dart_limits_episodes_by_the_longest_success() -> None:
    one, g = DART(Pool(3), 8, 2, DARTConfig(slack=1.5)), generator()
    ids = torch.tensor([0, 0, 1, 1])
    outcome = Outcome(ids, torch.tensor([1.0, 1, 0, 0]), {"length": torch.tensor([4.0, 7, 30, 40])})
    assert one.failed(outcome).tolist() == [1]
    one.observe(outcome, g)
    assert one.longest_episodes(torch.tensor([0, 1, 2]), 50).tolist() == [11, 50, 50]
    assert one.longest_episodes(torch.tensor([0]), 9).tolist() == [9]
    assert Uniform(Pool(3), 8, 2).longest_episodes(ids, 50) is None
    assert not len(Uniform(Pool(3), 8, 2).failed(outcome))
    turns = {"turns": torch.tensor([2.0, 3, 9, 9]), "length": torch.full((4,), 99.0)}
    other = DART(Pool(3), 8, 2, DARTConfig(slack=1.5))
    other.observe(Outcome(ids, torch.tensor([1.0, 1, 0, 0]), turns), g)
    assert other.longest_episodes(torch.tensor([0]), 50).tolist() == [5]


def cells(families: int, levels: int) -> Pool:
    ids = torch.arange(families * levels)
    return Pool(len(ids), levels=ids % levels, families=ids // levels)


def test_scaler_moves_difficulty_as_by_hand() -> None:
    pool, g = cells(1, 6), generator()
    one = SCALER(pool, 16, 4, SCALERConfig(gain=2.0, cap=1.0, failures=99, saturated=99))
    assert one.request(g).prompts.tolist() == [0]

    def hear(levels: list[int], rewards: list[float]) -> float:
        one.observe(Outcome(torch.tensor(levels), torch.tensor(rewards)), g)
        return float(one.difficulty[0])

    assert hear([0] * 4, [1, 1, 1, 0]) == pytest.approx(0.5)  # 2 (0.75 - 0.5)
    assert one.request(g).prompts.tolist() == [0, 1]
    assert one.request(g).rollouts.tolist() == [8, 8]  # half of four groups each
    # 0.5 x 1 + 0.5 x 0.5 = 0.75 is interpolated.
    assert hear([0, 0, 1, 1], [1, 1, 1, 0]) == pytest.approx(1.0)
    assert hear([1] * 4, [1] * 4) == pytest.approx(2.0)  # capped
    assert hear([2] * 4, [0] * 4) == pytest.approx(1.0)
    assert hear([1] * 2, [0, 0]) == pytest.approx(0.0)
    assert hear([0] * 2, [0, 0]) == pytest.approx(0.0)  # not below the lowest


def test_scaler_keeps_accuracy_near_the_target_while_the_policy_improves() -> None:
    """Success at a level falls by a logistic law; the policy's skill rises from 1 to 12 levels."""
    pool, g = cells(4, 20), generator(3)
    assert pool.levels is not None
    config = SCALERConfig(active=4, failures=99, saturated=99, history=1000)
    one, prompts, late = SCALER(pool, 256, 8, config), Prompts(torch.zeros(80)), []
    for t in range(120):
        skill = 1 + 11 * t / 120
        prompts.rate = torch.sigmoid(1.5 * (skill - pool.levels.double()))
        outcome = prompts.round(one, g)
        if t >= 20:
            late.append(float(outcome.rewards.mean()))
    assert sum(late) / len(late) == pytest.approx(0.5, abs=0.08)
    assert sum(0.3 < a < 0.75 for a in late) / len(late) > 0.95
    assert bool(((one.difficulty - 12).abs() < 1.5).all())
    # Fixed at any one level, accuracy leaves that band for most of the run.
    fixed = torch.sigmoid(1.5 * (1 + 11 * torch.arange(20, 120) / 120 - 6))
    assert float(((fixed > 0.3) & (fixed < 0.75)).double().mean()) < 0.2


def test_scaler_replaces_what_has_nothing_to_teach() -> None:
    """Families 0 and 1 can never be solved, 2 and 3 always; 4 to 7 are learnable."""
    pool, g = cells(8, 4), generator(5)
    rate = torch.cat([torch.zeros(8), torch.ones(8), torch.tensor([0.9, 0.6, 0.4, 0.1]).repeat(4)])
    one = SCALER(pool, 64, 4, SCALERConfig(active=3, failures=3, saturated=3, history=12))
    prompts, seen = Prompts(rate), torch.zeros(8)
    for _ in range(200):
        assert len(one.window.unique()) == 3
        prompts.round(one, g)
        seen[one.window] += 1
    assert float(seen[4:].mean()) > 1.5 * float(seen[:4].mean())
    assert int(seen.min()) > 0  # replaced ones come back
    with pytest.raises(ConfigError, match="a prompt of every level"):
        SCALER(Pool(2, levels=torch.tensor([0, 2]), families=torch.zeros(2).long()), 8, 4)
