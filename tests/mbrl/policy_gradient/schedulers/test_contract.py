"""What every scheduler keeps to: its budget, its contract, exact resume, checked settings."""

import dataclasses
import io
import re

import pytest
import torch

from mbrl.errors import CheckpointError, ConfigError
from mbrl.policy_gradient.schedulers import (
    COMPONENTS,
    SCHEDULERS,
    Entry,
    Outcome,
    Pool,
    Request,
    gather,
    scheduler,
)
from mbrl.policy_gradient.schedulers.allocation import draw, first, share_out, tally
from mbrl.policy_gradient.schedulers.curricula import DRIVEConfig, Stage
from mbrl.policy_gradient.schedulers.scheduler import Scheduler
from tests.mbrl.policy_gradient.schedulers.simulated import Prompts, full_pool, generator

NAMES = sorted(SCHEDULERS)
SHORT = {"drive": DRIVEConfig((Stage(2), Stage(2, groups=2, hardest=0.2)))}


def made(name: str, budget: int = 160, group: int = 4) -> Scheduler:
    return scheduler(name, full_pool(), budget=budget, group=group, config=SHORT.get(name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("budget", "group"), [(160, 4), (83, 3), (400, 8), (70, 4)])
def test_the_budget_is_kept_and_rollouts_are_chosen(name: str, budget: int, group: int) -> None:
    one, g = made(name, budget, group), generator(1)
    prompts = Prompts(torch.linspace(0, 1, 48))
    for _ in range(6):
        outcome = gather(one, prompts.roll, g)  # raises beyond the budget
        assert 0 < len(outcome.prompts) <= budget
        assert bool(((outcome.prompts >= 0) & (outcome.prompts < 48)).all())
        kept = one.keep(outcome, g)
        assert kept.dtype == torch.bool and kept.shape == outcome.prompts.shape and bool(kept.any())
        one.observe(outcome, g)
    assert one.rounds == 6


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_scheduler_asks_for_the_same(name: str) -> None:
    one, other = made(name), made(name)
    g, prompts = generator(2), Prompts(torch.linspace(0, 1, 48))
    for _ in range(3):
        prompts.round(one, g)
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    other.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    h, again = generator(), Prompts(torch.linspace(0, 1, 48))
    h.set_state(g.get_state())
    again.generator.set_state(prompts.generator.get_state())
    for _ in range(3):
        mine, theirs = prompts.round(one, g), again.round(other, h)
        assert torch.equal(mine.prompts, theirs.prompts)
        assert torch.equal(mine.rewards, theirs.rewards)
    # What was saved is a copy: later rounds did not change it.
    first_state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    assert first_state["rounds"] == 3 and one.state_dict()["rounds"] == 6


@pytest.mark.parametrize("name", NAMES)
def test_states_of_others_and_impossible_budgets_are_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="load the state of the same scheduler"):
        made(name).load_state_dict({"rounds": 1, "nothing": 2})
    with pytest.raises(ConfigError, match="budget 3"):
        made(name, budget=3, group=4)
    with pytest.raises(ConfigError, match="Config"):
        scheduler(name, full_pool(), budget=160, group=4, config=Pool(3))


def test_a_state_of_another_pool_is_refused() -> None:
    small = scheduler("vade", Pool(5), budget=8, group=4)
    with pytest.raises(CheckpointError, match="same pool"):
        scheduler("vade", Pool(6), budget=8, group=4).load_state_dict(small.state_dict())


@pytest.mark.parametrize("name", ["mpts", "difficulty_targeted"])
def test_a_round_of_all_prompts_is_no_sign_of_another_pool(name: str) -> None:
    """What is remembered of a round may have as many rows as the pool has prompts."""
    pool = full_pool()
    one = scheduler(name, pool, budget=4 * pool.size, group=4)
    begun = one.state_dict()
    for attribute in one.varying:
        one.__dict__[attribute] = torch.ones(pool.size)
    one.load_state_dict(begun)
    assert all(len(getattr(one, attribute)) == 0 for attribute in one.varying)


BAD = {
    "brorl": {"factor": 0, "power": 2.0},
    "vade": {"prior": 0.0, "fast": 1.5, "slow": -0.1, "priority": "luck"},
    "dars": {"schedule": "none", "first": 1.5, "most": 1},
    "reinforce_ada_scheduler": {"choice": "odd", "step": 0, "passes": 0},
    "gdro_prompt": {"bins": 1, "rate": 0.0, "smooth": 1.0, "forget": 2.0, "explore": -1.0},
    "gdro_rollout": {"fewest": 1, "most": 3, "bins": 1, "smooth": 2.0},
    "xrpo_scheduler": {"base": 1, "step": 0, "level": 1.0, "explore": -1.0},
    "v0": {"fewest": 0, "most": 3, "context": 0},
    "v_half_scheduler": {"cost": 0.0, "most": 2},
    "difficulty_targeted": {"references": 0, "every": 0, "temperature": 0.0, "fresh": 0.0},
    "drive": {"stages": (), "discount": 0.0},
    "scaler": {"target": 2.0, "gain": 0.0, "history": 2, "active": 0},
    "mpts": {"candidates": 0, "draws": 1, "evenly": 2.0, "lr": 0.0},
    "weighted_pairs": {"hard": (0.5, 0.4), "easy": (0.3, 1.0)},
    "grpo_roc_scheduler": {"factor": 0, "fewest": -1},
    "dart_scheduler": {"fewest": 0, "threshold": 1.0, "slack": 0.5},
}


@pytest.mark.parametrize(
    ("name", "setting", "value"), [(n, k, v) for n, d in BAD.items() for k, v in d.items()]
)
def test_settings_out_of_range_are_refused(name: str, setting: str, value: object) -> None:
    def made() -> object:
        config = dataclasses.replace(SCHEDULERS[name].config, **{setting: value})
        return scheduler(name, full_pool(), budget=160, group=4, config=config)

    with pytest.raises(ConfigError):
        made()


def test_a_pool_without_what_is_read_is_refused() -> None:
    for name in ("v0", "difficulty_targeted", "mpts"):
        with pytest.raises(ConfigError, match="no features"):
            scheduler(name, Pool(48), budget=160, group=4)
    with pytest.raises(ConfigError, match="no levels and no families"):
        scheduler("scaler", Pool(48), budget=160, group=4)
    with pytest.raises(ConfigError, match="features has shape"):
        Pool(4, torch.zeros(3, 2))
    with pytest.raises(ConfigError, match="did you mean 'vade'"):
        scheduler("vdae", Pool(4), budget=4, group=2)


def test_shaped_rewards_are_refused_where_successes_are_counted() -> None:
    one, g = scheduler("vade", Pool(4), budget=4, group=2), generator()
    with pytest.raises(ConfigError, match=re.escape("give rewards in [0, 1]")):
        one.observe(Outcome(torch.tensor([0, 1]), torch.tensor([1.5, 0.0])), g)
    with pytest.raises(ConfigError, match="no signal 'penalty'"):
        scheduler("grpo_roc_scheduler", Pool(4), budget=4, group=2).keep(
            Outcome(torch.tensor([0]), torch.ones(1)), g
        )


def test_every_entry_says_where_it_is_from() -> None:
    for name, entry in {**SCHEDULERS, **COMPONENTS}.items():
        assert entry.title and entry.make.__doc__, name
        assert entry.arxiv is None or re.fullmatch(r"\d{4}\.\d{5}", entry.arxiv), name
        assert entry.config is None or type(entry.config)() == entry.config
    with pytest.raises(ConfigError, match="assumptions"):
        Entry(Pool, None, "x", mark="reconstructed")


def test_requests_merge_and_outcomes_join() -> None:
    request = Request.of(torch.tensor([5, 2, 5, 9]), torch.tensor([1, 2, 3, 0]))
    assert request.prompts.tolist() == [2, 5] and request.rollouts.tolist() == [2, 4]
    assert request.each().tolist() == [2, 2, 5, 5, 5, 5] and request.total == 6
    one = Outcome(torch.tensor([1]), torch.ones(1), {"a": torch.ones(1), "b": torch.ones(1)})
    both = one.joined(Outcome(torch.tensor([2]), torch.zeros(1), {"a": torch.zeros(1)}))
    assert both.prompts.tolist() == [1, 2] and list(both.signals) == ["a"]
    with pytest.raises(ValueError, match="rewards has 2 rows"):
        Outcome(torch.tensor([1]), torch.ones(2))


def test_tallies_are_those_of_a_loop() -> None:
    g = generator()
    ids, rewards = torch.randint(5, (40,), generator=g), torch.randn(40, generator=g)
    found = tally(Outcome(ids, rewards), 6)
    for i in range(5):
        mine = rewards[ids == i].double()
        assert found.count[i] == len(mine)
        assert found.mean[i] == pytest.approx(float(mine.mean()))
        assert found.variance[i] == pytest.approx(float(mine.var()))
    assert found.count[5] == found.mean[5] == found.variance[5] == 0
    with pytest.raises(ConfigError, match="not in the pool"):
        tally(Outcome(torch.tensor([6]), torch.ones(1)), 6)


def test_shares_are_whole_bounded_and_in_proportion() -> None:
    g = generator()
    for _ in range(200):
        size = int(torch.randint(1, 9, (), generator=g))
        weights = torch.rand(size, generator=g) * (torch.rand(size, generator=g) < 0.8)
        low = torch.randint(0, 3, (size,), generator=g)
        high = low + torch.randint(0, 9, (size,), generator=g)
        total = int(torch.randint(int(low.sum()), int(high.sum()) + 5, (), generator=g))
        share = share_out(weights, total, low, high)
        assert bool(((share >= low) & (share <= high)).all())
        assert int(share.sum()) == min(total, int(high.sum()))
        # Nobody below its bound is more than one unit behind somebody of less weight.
        for i in range(size):
            for j in range(size):
                if weights[i] >= weights[j] and low[i] >= low[j] and share[i] < high[i]:
                    assert share[i] >= min(share[j], high[i]) - 1 or share[j] == low[j]
    assert share_out(torch.tensor([1.0, 2.0, 3.0]), 12, 0, 99).tolist() == [2, 4, 6]
    assert share_out(torch.zeros(3), 7, 0, 9).tolist() == [3, 2, 2]


def test_draws_follow_their_weights() -> None:
    g, weights = generator(), torch.tensor([0.0, 1.0, 2.0, 5.0])
    drawn = torch.stack([draw(weights, 2, g) for _ in range(4000)])
    share = torch.bincount(drawn[:, 0], minlength=4) / 4000
    assert share.tolist() == pytest.approx((weights / 8).tolist(), abs=0.03)
    # The second, after 3 was taken, is 1 or 2 at 1 : 2.
    second = drawn[drawn[:, 0] == 3, 1]
    assert float((second == 2).double().mean()) == pytest.approx(2 / 3, abs=0.04)
    assert sorted(draw(weights, 9, g).tolist()) == [0, 1, 2, 3]
    assert first(torch.tensor([1.0, 3.0, 2.0]), 2, g).tolist() == [1, 2]


class Greedy(Scheduler):
    """Asks for more than it may."""

    def request(self, generator: torch.Generator) -> Request:
        return Request.of(torch.tensor([0]), self.budget + 1)


def test_a_scheduler_that_spends_too_much_is_stopped() -> None:
    prompts = Prompts(torch.ones(1))
    with pytest.raises(RuntimeError, match="its budget is 4"):
        gather(Greedy(Pool(1), 4, 2), prompts.roll, generator())
