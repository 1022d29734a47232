"""Groups with more conversations than are learned from, groups that are given up, and rewards that
are done again."""

import dataclasses
import hashlib
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language.policy_gradient import LanguagePolicyGradient
from algorithms.language.sampling.async_collector import (
    AsyncCollector,
    Group,
    Ledger,
    ReplayCollector,
    opened,
    worker_config,
)
from algorithms.language.sampling.rewards import Place
from algorithms.language.sampling.workers import Inline, Processes, WorkerModel
from algorithms.language.tasks import text_task
from algorithms.language.tasks.base import Problem, Reply
from mbrl.distributed.elastic import Elastic
from mbrl.errors import ConfigError
from mbrl.training import train
from tests.algorithms.language.cases import learner as told_learner
from tests.algorithms.language.sampling.test_async_collector import Shuffled, learner


def row(tokens: int, done: bool) -> dict[str, Any]:
    return {"behaviour": [0.0] * tokens, "done": done}


def test_the_first_to_finish_are_taken() -> None:
    """By the piece of work that they came with, then by length, then by place; in their order."""
    group = Group(0, 0, [row(0, False)] * 5, wanted=3)
    group.returned([row(4, False), row(4, False), row(3, True), row(4, False), row(4, False)])
    assert not group.done and group.finished == [2]
    group.returned([row(8, True), row(7, True), row(3, True), row(8, False), row(6, True)])
    assert group.done
    assert [len(r["behaviour"]) for r in group.rows] == [7, 3, 6]
    whole = Group(0, 0, [row(0, False)] * 2)
    whole.returned([row(1, False), row(2, True)])
    assert not whole.done
    whole.returned([row(9, True), row(2, True)])
    assert whole.done and [len(r["behaviour"]) for r in whole.rows] == [9, 2]


def run(
    agent: LanguagePolicyGradient, path: Path, lost: float = 0.0, **rules: Any
) -> AsyncCollector:
    workers = Shuffled(worker_config(agent, 2, 1), 3, seed=1, lost=lost)
    source = AsyncCollector(agent, workers, chunk=2, record=path, **rules)
    train(agent, 3, [], source)
    return source


@pytest.mark.parametrize(
    "rules",
    [
        {},
        pytest.param({"redundancy": 2}, marks=pytest.mark.long),
        {"drop_late": True, "redundancy": 1},
    ],
)
def test_groups_have_their_size_and_are_replayed(rules: dict[str, Any], tmp_path: Path) -> None:
    agent, again = learner(), learner()
    sizes: Counter[int] = Counter()
    usual = agent.take_in

    def take_in(rollouts: Any) -> int:
        sizes.update(rollouts.data.groups["prompt"][:, 0].bincount().tolist())
        assert all(r[-1].done for r in rollouts.replies)
        return usual(rollouts)

    agent.take_in = take_in  # type: ignore[method-assign]
    source = run(agent, tmp_path / "schedule.jsonl", **rules)
    assert sizes == {2: 9}
    inline = Inline(worker_config(again, 2, 1))
    train(again, 3, [], ReplayCollector(again, inline, tmp_path / "schedule.jsonl", **rules))
    for a, b in zip(agent.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    restored = AsyncCollector(agent, inline, chunk=2, **rules)
    state = source.state_dict()
    restored.load_state_dict(state)
    left = {**source.ledger.waiting, **source.ledger.ready}
    assert left.items() <= {**restored.ledger.waiting, **restored.ledger.ready}.items()


def test_without_redundancy_groups_are_as_ever() -> None:
    one, two = learner(), learner()
    plain = opened(one, 3, 0)
    assert plain == opened(two, 3, 0, 0) and plain[0].wanted is None
    more = opened(learner(), 3, 0, 2)
    assert [len(g.rows) for g in more] == [4, 4, 4] and more[0].wanted == 2
    assert [r["seed"] for r in more[0].rows[:2]] == [r["seed"] for r in plain[0].rows]


def test_late_groups_are_never_learned_from_and_others_begin() -> None:
    ledger = Ledger(1, 1, drop_late=True)
    ledger.begin([Group(n, 0, [row(0, False)]) for n in range(2)])
    assert ledger.may_begin() == 0
    slow, fast = ledger.take([0]), ledger.take([1])
    versions = []
    for number in range(2, 6):
        ledger.returned(fast.number, [row(1, True)])
        chosen = ledger.chosen()
        assert chosen is not None
        versions += [(ledger.version, g.begun) for g in ledger.learn(chosen)]
        ledger.begin([Group(number, ledger.version, [row(0, False)])])
        fast = ledger.take([number])
    assert all(now - begun <= 1 for now, begun in versions)
    assert ledger.dropped == 1 and ledger.may_begin() == 1
    ledger.returned(slow.number, [row(50, True)])  # nobody waits for it
    assert ledger.ready == {} and ledger.waiting == {}


def test_what_does_not_fit_is_refused() -> None:
    agent = learner()
    with pytest.raises(ConfigError, match="redundancy -1"):
        AsyncCollector(agent, Inline(worker_config(agent, None, 1)), redundancy=-1)
    with pytest.raises(ConfigError, match="kind is 'rya'"):
        Elastic(print, "rya")  # type: ignore[arg-type]


class Unsteady:
    """A task's replies that fail the first times, or end their process then, as marks in a folder
    say."""

    def __init__(self, folder: Path, times: int, dies: bool = False) -> None:
        self.folder, self.times, self.dies = folder, times, dies

    def __call__(self, problem: Problem, turns: list[str]) -> Reply:
        asked = "-".join(map(str, [*problem.facts.values(), *turns]))
        mark = self.folder / hashlib.sha256(asked.encode()).hexdigest()
        count = len(mark.read_text()) if mark.exists() else 0
        mark.write_text("x" * (count + 1))
        if count < self.times:
            if self.dies:
                os._exit(1)
            raise OSError("no answer")
        return text_task("guessing").reply(problem, turns)


def unsteady(replies: Unsteady, place: Place, retries: int) -> LanguagePolicyGradient:
    """A learner whose task replies so; the settings are those of a run."""
    config = dataclasses.replace(
        told_learner("guessing", "grpo").config, rewards=place, reward_retries=retries
    )
    agent = LanguagePolicyGradient(config=config)
    assert agent.task.elsewhere is not None
    agent.task.elsewhere.function = replies
    return agent


def test_rewards_that_fail_are_made_again_and_change_nothing(tmp_path: Path) -> None:
    expected = LanguagePolicyGradient(config=told_learner("guessing", "grpo").config).sample_round()
    got = unsteady(Unsteady(tmp_path, 2), "inline", 2).sample_round()
    assert got.replies == expected.replies and torch.equal(got.tokens, expected.tokens)
    assert len(list(tmp_path.iterdir())) > 0
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(RuntimeError, match="failed 2 times: no answer"):
        unsteady(Unsteady(other, 9), "inline", 1).sample_round()


def test_workers_have_the_rewards_of_the_run() -> None:
    config = dataclasses.replace(learner().config, reward_retries=3)
    asked = worker_config(LanguagePolicyGradient(config=config), None, 1)
    elsewhere = WorkerModel(asked).task.elsewhere
    assert elsewhere is not None and elsewhere.retries == 3
    with pytest.raises(ConfigError, match="rewards is 'ray'"):
        Processes(dataclasses.replace(asked, rewards="ray"), 1)


@pytest.mark.long
def test_a_killed_reward_task_changes_nothing(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    expected = LanguagePolicyGradient(config=told_learner("guessing", "grpo").config).sample_round()
    got = unsteady(Unsteady(tmp_path, 1, dies=True), "ray", 3).sample_round()
    ray.shutdown()
    assert got.replies == expected.replies and torch.equal(got.tokens, expected.tokens)
    assert len(list(tmp_path.iterdir())) > 0
