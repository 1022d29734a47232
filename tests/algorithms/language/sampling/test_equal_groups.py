"""Groups whose rewards are equal make room for others, beside workers and without."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language import tasks
from algorithms.language.learner import ModelConfig
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling.async_collector import (
    AsyncCollector,
    Group,
    Ledger,
    ReplayCollector,
    events,
    worker_config,
)
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.sampling.equal_groups import TRIES, UnequalCollector, differ
from algorithms.language.sampling.workers import Inline
from algorithms.language.tasks.base import Problem, Reply
from mbrl.errors import ConfigError
from mbrl.training import train
from tests.algorithms.language.small import TINY, Digits


class Parity(Digits):
    """About half of all answers are right."""

    name = "parity"

    def reply(self, problem: Problem, turns: Any) -> Reply:
        right = sum(map(ord, turns[-1])) % 2 == 0
        return Reply(float(right), True, right)


class Solved(Digits):
    """Every answer is right."""

    name = "solved"

    def reply(self, problem: Problem, turns: Any) -> Reply:
        return Reply(1.0, True, True)


@pytest.fixture(autouse=True)
def _tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    for task in (Parity(), Solved()):
        monkeypatch.setitem(tasks.TASKS, task.name, task)


def learner(**changes: Any) -> LanguagePolicyGradient:
    values = {"task": "parity", "prompts": 2, "group": 3, "minibatches": 1, "drop_equal": True}
    config = LanguageConfig(model=ModelConfig(transformer=TINY), **(values | changes))
    return LanguagePolicyGradient(config=config)


def mixed(agent: LanguagePolicyGradient) -> list[float]:
    """The share of groups with different rewards, round by round."""
    shares: list[float] = []

    def observe(event: str, agent: Any, metrics: dict[str, Any]) -> None:
        if "rollout/mixed_groups" in metrics:
            shares.append(float(metrics["rollout/mixed_groups"]))

    agent.observe = observe  # type: ignore[attr-defined]
    return shares


def test_a_round_has_whole_groups_that_differ() -> None:
    agent = learner()
    assert isinstance(agent.collector, UnequalCollector)
    for _ in range(3):
        rollouts = agent.collector.collect()
        owner = rollouts.data.groups["prompt"][:, 0]
        assert owner.bincount().tolist() == [3, 3]
        rewards = torch.where(rollouts.data.mask, rollouts.data.reward, 0.0).sum(1)
        for i in range(2):
            assert len(rewards[owner == i].unique()) > 1
        assert agent.collector.acts is not None and 0 <= agent.collector.acts < 1
    assert agent.drawn > 6  # more problems than rounds have


def test_rounds_with_workers_have_groups_that_differ_and_are_replayed(tmp_path: Path) -> None:
    agent, again, path = learner(staleness=1), learner(staleness=1), tmp_path / "schedule.jsonl"
    shares = mixed(agent)
    source = AsyncCollector(agent, Inline(worker_config(agent, None, 1)), chunk=3, record=path)
    train(agent, 6, [agent.observe], source)  # type: ignore[attr-defined]
    assert set(shares) == {1.0}
    begun, used, out = 0, Counter[int](), Counter[int]()
    version = 0
    for event, value in events(path):
        if event == "begin":
            begun += value
            assert begun <= (version + 2) * 2 + sum(out.values())  # they gave their place back
        elif event == "drop":
            out.update(value)
        elif event == "learn":
            used.update(value)
            version += 1
    assert set(used.values()) == {1} == set(out.values()) and not used & out
    train(again, 6, [], ReplayCollector(again, Inline(worker_config(again, None, 1)), path))
    for a, b in zip(agent.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_dropped_groups_give_their_place_back() -> None:
    ledger = Ledger(batch=2, staleness=0)
    ledger.begin([Group(n, 0, [{"done": True}]) for n in range(2)])
    piece = ledger.take([0, 1])
    ledger.returned(piece.number, piece.rows)
    assert ledger.may_begin() == 0
    ledger.drop([1])
    assert ledger.may_begin() == 1 and ledger.chosen() is None
    again = Ledger(batch=2, staleness=0)
    again.load_state_dict(ledger.state_dict())
    assert again == ledger
    ledger.begin([Group(2, 0, [{"done": True}])])
    piece = ledger.take([2])
    ledger.returned(piece.number, piece.rows)
    assert ledger.chosen() == [0, 2]
    ledger.learn([0, 2])
    assert (ledger.tried, ledger.dropped, ledger.may_begin()) == (0, 1, 2)


@pytest.mark.parametrize("workers", [False, True])
def test_a_task_that_is_always_solved_ends_with_a_message(workers: bool) -> None:
    agent = learner(task="solved")
    source = AsyncCollector(agent, Inline(worker_config(agent, None, 1))) if workers else agent
    with pytest.raises(RuntimeError, match=f"{2 * TRIES} groups had equal rewards each"):
        source.collect(agent)


def test_differ() -> None:
    rows = [Conversation(Problem("", 4), [], 0) for _ in range(3)]
    for row, reward in zip(rows, (0.5, 0.5, 0.5), strict=True):
        row.replies.append(Reply(reward, True, False))
    assert not differ(rows)
    rows[1].replies.append(Reply(0.25, True, False))
    assert differ(rows)


@pytest.mark.parametrize("changes", [{"scheduler": "vade", "pool": 8}, {"templates": 2}])
def test_other_rounds_do_not_drop(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="leave drop_equal off"):
        learner(**changes)
