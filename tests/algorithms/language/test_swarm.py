"""Nodes that share texts: alone they are lone runs, and what they hear is encoded, graded and
weighed by themselves."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language import tasks
from algorithms.language.learner import ModelConfig
from algorithms.language.models.transformer import TransformerConfig
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.sampling.tokens import Sampling
from algorithms.language.swarm import SwarmNode, retold, shared, swarm_round
from algorithms.language.tasks.base import Problem, Reply
from mbrl.errors import ConfigError
from mbrl.training import train
from tests.algorithms.language.small import Digits


class Parity(Digits):
    """About half of all answers are right, after one turn or two."""

    name = "parity"

    def reply(self, problem: Problem, turns: Any) -> Reply:
        right = sum(map(ord, turns[-1])) % 2 == 0
        return Reply(float(right), right or len(turns) == 2, right, "" if right else "no")


class Marked(Parity):
    """The same problems, with another opinion of the answers."""

    def reply(self, problem: Problem, turns: Any) -> Reply:
        return Reply(0.25 * len(turns), super().reply(problem, turns).done, False, "no")


@pytest.fixture(autouse=True)
def _tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.TASKS, "parity", Parity())


def learner(seed: int = 0, width: int = 16, **changes: Any) -> LanguagePolicyGradient:
    values = {"task": "parity", "prompts": 4, "group": 3, "minibatches": 2, "recipe": "dr_grpo"}
    shape = TransformerConfig(width=width, layers=2, heads=2, hidden=24)
    config = LanguageConfig(model=ModelConfig(transformer=shape), **(values | changes))
    return LanguagePolicyGradient(config=config, seed=seed)


def same(a: LanguagePolicyGradient, b: LanguagePolicyGradient) -> bool:
    pairs = zip(a.model.parameters(), b.model.parameters(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def test_nodes_that_hear_nothing_are_lone_runs() -> None:
    nodes = [SwarmNode(learner(i), i, 0) for i in range(2)]
    for _ in range(2):
        swarm_round(nodes)
    for i, node in enumerate(nodes):
        alone = learner(i)
        train(alone, 2, [], alone)
        assert same(alone, node.agent)


def test_what_is_heard_is_encoded_graded_and_weighed_anew() -> None:
    first, second = learner(0), learner(1, width=8)
    group = SwarmNode(first, 0, 2).sample()[0]
    assert set(group) == {"problem", "answers", "cut"}  # no tokens, rewards or log-probs
    second.task = Marked()
    rows = retold(second, group)
    assert rows is not None
    for row, turns, cut in zip(rows, group["answers"], group["cut"], strict=True):
        assert row.turns == turns and row.done and row.cut == cut[-1]
        assert [reply.reward for reply in row.replies] == [
            0.25 * (k + 1) for k in range(len(turns))
        ]
        for (start, stop), text, short in zip(row.spans, turns, cut, strict=True):
            said = second.codec.turn(text)
            assert row.tokens[start:stop] == (said[:-1] if short else said)
    assert retold(second, group | {"answers": [["\ufffd"]], "cut": [[False]]}) is None


def test_an_answer_that_was_cut_is_heard_without_an_end() -> None:
    node, other = SwarmNode(learner(0, turn_tokens=1), 0, 2), learner(1, turn_tokens=1)
    groups = node.sample()
    said = [row for row in node.collector.own if "\ufffd" not in "".join(row.turns)]
    heard = [row for group in groups for row in retold(other, group) or []]
    told = {tuple(row.turns): row for row in said}
    assert any(row.cut for row in heard)
    for row in heard:
        own = told[tuple(row.turns)]
        assert [row.tokens[a:b] for a, b in row.spans] == [own.tokens[a:b] for a, b in own.spans]
        assert row.cut == own.cut and len(row.behaviour) == len(own.behaviour)


def test_the_ratio_of_heard_answers_begins_at_one() -> None:
    nodes = [SwarmNode(learner(i), i, 2) for i in range(2)]
    said = [node.sample() for node in nodes]
    assert [len(groups) for groups in said] == [2, 2]
    one = nodes[0]
    one.collector.receive(said[1], random.Random(0))
    kept = len(one.collector.others)
    assert all(
        len({sum(r.reward for r in row.replies) for row in rows}) > 1
        for rows in one.collector.others
    )
    rollouts = one.agent.sample_round()
    t = rollouts.data
    assert len(rollouts) == 3 * (2 + kept)
    own = one.agent.measured(one.agent.model, rollouts)[0]
    heard = t.signals["teacher"][:, 0] > 0.5
    assert heard.sum() == 3 * kept > 0
    here = t.mask & heard[:, None]
    torch.testing.assert_close(t.log_probs["behaviour"][here], own[here])
    torch.testing.assert_close(t.log_probs["old"][here], own[here])
    assert t.groups["prompt"][:, 0].bincount().tolist() == [3] * (2 + kept)


def test_what_others_said_is_not_counted_as_own_success() -> None:
    node, other = SwarmNode(learner(0), 0, 2), SwarmNode(learner(1), 1, 2)
    node.sample()
    metrics = node.learn(other.sample())
    rewards = [sum(r.reward for r in row.replies) for row in node.collector.own]
    assert float(metrics["rollout/success"]) == pytest.approx(sum(rewards) / len(rewards))


def test_groups_of_equal_rewards_are_not_drawn() -> None:
    node = SwarmNode(learner(0), 0, 2)
    problem = learner(1).problem(0)
    whole = [[False], [False], [False]]
    equal = {"problem": shared_problem(problem), "answers": [["0"], ["2"], ["4"]], "cut": whole}
    unequal = equal | {
        "answers": [["0"], ["1", "1"], ["4"]],
        "cut": [[False], [False] * 2, [False]],
    }
    node.collector.receive([equal] * 5 + [unequal], random.Random(0))
    (rows,) = node.collector.others
    assert [row.turns for row in rows] == unequal["answers"]


def shared_problem(problem: Problem) -> dict[str, Any]:
    return shared([Conversation(problem, [])], 3)["problem"]


def test_a_swarm_goes_on_exactly(tmp_path: Path) -> None:
    nodes = [SwarmNode(learner(i), i, 2) for i in range(2)]
    swarm_round(nodes)
    for node in nodes:
        node.save(tmp_path / f"{node.number}.pt")
    swarm_round(nodes)
    again = [SwarmNode(LanguagePolicyGradient.load(tmp_path / f"{i}.pt"), i, 2) for i in range(2)]
    swarm_round(again)
    for a, b in zip(nodes, again, strict=True):
        assert same(a.agent, b.agent)


def test_actors_of_ray_do_the_same() -> None:
    ray = pytest.importorskip("ray")
    nodes = [SwarmNode(learner(i), i, 2) for i in range(2)]
    swarm_round(nodes)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    try:
        kind = ray.remote(SwarmNode)
        fresh = [learner(i) for i in range(2)]
        actors = [kind.remote(agent, i, 2) for i, agent in enumerate(fresh)]
        said = [actor.sample.remote() for actor in actors]
        ray.get([actor.learn.remote(ray.get(said[1 - i])) for i, actor in enumerate(actors)])
        states = ray.get([actor.weights.remote() for actor in actors])
    finally:
        ray.shutdown()
    for node, state in zip(nodes, states, strict=True):
        for name, value in node.agent.model.state_dict().items():
            assert torch.equal(value, torch.from_numpy(state[name]))


@pytest.mark.parametrize(
    ("changes", "external", "message"),
    [
        ({}, 4, "external is 4"),
        ({"staleness": 2}, 1, "staleness 2"),
        ({"templates": 2}, 1, "nodes that share"),
        ({"sampling": Sampling(top_p=0.9)}, 1, "top_p is 0.9"),
    ],
)
def test_nodes_that_cannot_share(changes: dict[str, Any], external: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SwarmNode(learner(**changes), 0, external)


def test_nodes_of_different_tasks() -> None:
    nodes = [SwarmNode(learner(), 0, 1), SwarmNode(learner(task="addition"), 1, 1)]
    with pytest.raises(ConfigError, match="one task"):
        swarm_round(nodes)
