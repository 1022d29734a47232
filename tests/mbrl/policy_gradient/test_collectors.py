"""Start states chosen by schedulers, and horizons that grow, in control."""

from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from mbrl import tasks
from mbrl.errors import ConfigError
from mbrl.policy_gradient.collectors import REFUSED, ScheduledEpisodeCollector
from mbrl.policy_gradient.schedulers import SCHEDULERS, Outcome
from mbrl.policy_gradient.schedulers.settings import settings
from mbrl.types import Trajectories

SETTINGS = {"difficulty_targeted": ("references=2",)}
SMALL: dict[str, Any] = {"envs": 8, "group": 2, "hidden": (8,), "epochs": 1, "minibatches": 2}


def agent_of(**settings: Any) -> PolicyGradient:
    config = PolicyGradientConfig(**SMALL | {"recipe": "rloo"} | settings)
    return PolicyGradient(tasks.make("CartPole-v1").spec, config, seed=1)


class Told:
    """Hears what a round tells its agent; acts by the pole's angle or at random."""

    def __init__(self, agent: PolicyGradient) -> None:
        self.agent = agent
        self.seen: list[Any] = []
        self.rounds: list[Any] = []

    def act(self, obs: Any, **options: Any) -> Any:
        return self.agent.act(obs, **options)

    def observe_rows(self, data: Any, rows: torch.Tensor) -> None:
        self.seen.append((data, rows))

    def starts(self, owner: torch.Tensor, kept: torch.Tensor, of_all: bool) -> None:
        self.rounds.append((owner.clone(), kept.clone(), self.seen))
        self.seen = []

    def end_round(self) -> int:
        return 1


@pytest.mark.parametrize(
    "name", ["uniform", "mpts", "difficulty_targeted", "vade", "dars", "dart_scheduler"]
)
def test_a_scheduler_hears_what_its_starts_earned(name: str) -> None:
    task = tasks.make("CartPole-v1")
    own = settings(name, SETTINGS.get(name, ()))
    rounds = ScheduledEpisodeCollector(task, name, 6, envs=12, group=2, seed=3, settings=own)
    heard: list[Any] = []
    original = rounds.scheduler.observe
    rounds.scheduler.observe = lambda *a: (heard.append(a[0]), original(*a))[1]  # type: ignore[method-assign]
    agent = Told(agent_of())
    while len(agent.rounds) < 3:
        rounds.collect(agent)
    low, high = task.spec.reference_returns
    for (owner, kept, steps), outcome in zip(agent.rounds, heard, strict=True):
        assert len(owner) == len(kept) <= 12 and kept.any()
        total, length = [0.0] * len(owner), [0] * len(owner)
        first: dict[int, torch.Tensor] = {}
        for data, rows in steps:
            for place, row in enumerate(rows.tolist()):
                first.setdefault(row, data.obs[place])
                total[row] += float(data.reward[place])
                length[row] += 1
        for row, start in enumerate(owner.tolist()):  # each began in the state it is said to
            assert torch.equal(first[row], task.observe(rounds.pool)[start])
            score = min(1.0, max(0.0, (total[row] - low) / (high - low)))
            assert float(outcome.rewards[row]) == pytest.approx(score, abs=1e-6)
            assert float(outcome.signals["length"][row]) == length[row]
        assert torch.equal(outcome.prompts, owner)


def episodes(agent: PolicyGradient) -> Trajectories:
    return agent.rounds[-1]


@pytest.mark.parametrize("name", ["mpts", "difficulty_targeted", "dars"])
def test_groups_are_copies_of_one_start(name: str) -> None:
    agent = agent_of(scheduler=name, pool=5, scheduler_settings=SETTINGS.get(name, ()))
    agent.learn(tasks.make("CartPole-v1"), steps=120, callbacks=[])
    t = episodes(agent)
    assert t.mask[:, 0].all()
    groups = t.groups["prompt"][:, 0].tolist()
    for i, one in enumerate(groups):
        for j, other in enumerate(groups):
            assert (one == other) == torch.equal(t.obs[i, 0], t.obs[j, 0])
    for i in range(len(t.mask)):  # left-aligned, also what a second pass added
        steps = int(t.mask[i].sum())
        assert t.mask[i, :steps].all() and t.segments["turn"][i, :steps].tolist() == [*range(steps)]
        if steps > 1:
            assert torch.equal(t.next_obs[i, : steps - 1], t.obs[i, 1:steps])


def test_reinforce_ada_compares_with_episodes_that_it_does_not_keep() -> None:
    """Baselines are means over all copies of a start, kept or not."""
    own = ("step=2", "right=0.05")
    agent = agent_of(
        recipe="dr_grpo",
        scheduler="reinforce_ada_scheduler",
        pool=2,
        envs=12,
        scheduler_settings=own,
    )
    collector, fewer = agent.collector(tasks.make("CartPole-v1")), 0
    for _ in range(4):
        while not collector.collect(agent):
            pass
        assert agent.data is not None
        whole, kept = episodes(agent), agent.data
        rows = whole.signals["trained"][:, 0].nonzero().flatten().tolist()
        fewer += len(rows) < len(whole.mask)
        assert len(kept.data.mask) == len(kept.estimate.weight) == len(rows)
        earned, starts = whole.reward.sum(1).tolist(), whole.groups["prompt"][:, 0].tolist()
        for place, row in enumerate(rows):
            mine = [r for r, start in zip(earned, starts, strict=True) if start == starts[row]]
            expected = earned[row] - sum(mine) / len(mine)
            assert float(kept.estimate.advantage[place, 0]) == pytest.approx(expected, abs=1e-4)
            assert torch.equal(kept.data.obs[place], whole.obs[row])
        agent.trainer.left = 0
    assert fewer


def test_the_hard_starts_are_chosen_more_often() -> None:
    """Of a pool with success rates 0, 1/2 and 1, as an agent that lets go at once has them."""
    rounds = ScheduledEpisodeCollector(
        tasks.make("CartPole-v1"), "vade", 3, envs=12, group=4, seed=0
    )
    rates, drawn, chosen = (0.0, 0.5, 1.0), torch.Generator().manual_seed(0), [0, 0, 0]
    rounds.outcome = made(rounds, rates, drawn)  # type: ignore[method-assign]
    agent = Told(agent_of())
    while len(agent.rounds) < 60:
        rounds.collect(agent)
    for owner, _, _ in agent.rounds[20:]:
        for start in owner.tolist():
            chosen[start] += 1
    assert chosen[1] >= max(chosen[0], chosen[2])


def made(
    rounds: ScheduledEpisodeCollector, rates: tuple[float, ...], drawn: torch.Generator
) -> Any:
    def outcome() -> Outcome:
        chance = torch.tensor(rates)[rounds.owner]
        return Outcome(rounds.owner, (torch.rand(len(chance), generator=drawn) < chance).double())

    return outcome


def test_horizons_grow_round_by_round() -> None:
    agent = agent_of(horizon=(3, 7), horizon_every=2, recipe="ppo")
    lengths = []
    task, collector = tasks.make("CartPole-v1"), None
    collector = agent.collector(task)
    while len(lengths) < 5:
        if collector.collect(agent):
            t = episodes(agent)
            lengths.append(int(t.mask.sum(1).max()))
            full = t.mask.sum(1) == lengths[-1]
            last = t.truncated[full, lengths[-1] - 1] | t.terminated[full, lengths[-1] - 1]
            assert last.all()
    assert lengths[:2] == [3, 3] and lengths[2:] == [7, 7, 7]


@pytest.mark.parametrize("name", ["mpts", "difficulty_targeted"])
def test_scheduled_runs_resume_in_the_middle_of_a_round(name: str, tmp_path: Path) -> None:
    task = tasks.make("CartPole-v1")
    agent = agent_of(scheduler=name, pool=5, scheduler_settings=SETTINGS.get(name, ()))
    whole = agent.collector(task)
    for _ in range(45):
        turn(agent, whole)
    agent.save(tmp_path / "agent.pt")
    again = PolicyGradient.load(tmp_path / "agent.pt")
    part = again.collector(task)
    part.load_state_dict(whole.state_dict())
    for _ in range(60):
        turn(agent, whole)
        turn(again, part)
    for a, b in zip(agent.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(a, b)
    assert whole.returns == part.returns


def turn(agent: PolicyGradient, source: Any) -> None:
    for _ in range(source.collect(agent)):
        agent.update(agent.next_batch())


def test_what_cannot_choose_starts_is_refused() -> None:
    for name in REFUSED:
        assert name in SCHEDULERS
        with pytest.raises(ConfigError, match=f"the scheduler {name} cannot choose start states"):
            agent_of(scheduler=name, pool=5)
    with pytest.raises(ConfigError, match="give pool their number"):
        agent_of(scheduler="mpts")
    with pytest.raises(ConfigError, match="pool is -1"):
        agent_of(pool=-1)
    with pytest.raises(ConfigError, match="references"):
        agent_of(scheduler="difficulty_targeted", pool=5, scheduler_settings=("reference=2",))
    with pytest.raises(ConfigError, match="lengths"):
        agent_of(horizon=(7, 3))
    with pytest.raises(ConfigError, match="scheduler"):
        agent_of(scheduler="mtps", pool=5)
