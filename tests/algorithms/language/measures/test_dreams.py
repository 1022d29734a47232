"""Conversations with a model of the task: the task itself as the model, what is learned, flags."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language.measures import dreams
from algorithms.language.measures.assembled import own_groups
from algorithms.language.measures.dreams import (
    FAILURE,
    SUCCESS,
    ImaginedConversations,
    LearnedWorld,
    TaskWorld,
    imagined,
)
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling.conversation import demonstration
from algorithms.language.sampling.tokens import Sampling
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import (
    continued,
    kept_rows,
    learner,
    lenient,
    log_probs,
    part_of,
    rounds,
    shake,
)


def dreamer(**settings: Any) -> LanguagePolicyGradient:
    given = {"levels": (3,), "prompts": 4, "group": 3, "turn_tokens": 2} | settings
    return learner("grid_world", "dynaweb", **given)


@pytest.mark.parametrize("task", ["grid_world", "guessing"])
def test_with_the_task_as_the_model_imagined_is_real_token_for_token(task: str) -> None:
    agent = learner(task, "grpo", turn_tokens=3)
    agent.task = lenient(agent.task)
    starts = agent.collector.open([agent.problem(i) for i in range(3)])
    rows = agent.collector.copies(starts, [4] * 3)
    real = [row.again(row.seed) for row in rows]
    agent.collector.advance(real, agent.collector.limits())
    known = agent.task
    imagined(agent, TaskWorld(agent.task, agent.codec), rows)
    assert agent.task is known and any(len(row.turns) > 1 for row in rows)
    for row, other in zip(rows, real, strict=True):
        mine, theirs = row.plain(), other.plain()
        for name in ("behaviour", "model"):  # a text is read anew after every turn
            assert mine.pop(name) == pytest.approx(theirs.pop(name), abs=1e-4)
        assert mine == theirs


def shown(agent: Any, count: int) -> list[Any]:
    return [
        demonstration(agent.codec, agent.task, agent.problem(i), random.Random(0))
        for i in range(count)
    ]


def test_lessons_are_what_the_task_says() -> None:
    agent = dreamer()
    world = LearnedWorld(agent)
    rows = [*shown(agent, 3), *(r for g in own_groups(agent, [agent.problem(9)]) for r in g)]
    tokens, here = world.lessons(rows)
    for i, row in enumerate(rows):
        said = tokens[i, 1:][here[i]].tolist()
        expected: list[int] = []
        for reply in row.replies[:-1]:
            expected += agent.codec.between(reply.observation)
        end = SUCCESS if row.replies[-1].success else FAILURE
        expected += agent.codec.between(end)
        assert said == expected
        assert tokens[i, : len(row.tokens)].tolist() == row.tokens


def test_its_loss_is_the_likelihood_of_the_tasks_tokens() -> None:
    agent = dreamer()
    world = LearnedWorld(agent)
    shake(world.model, 0)
    rows = shown(agent, 3)
    tokens, here = world.lessons(rows)
    total: list[float] = []
    for i in range(len(rows)):
        for at in here[i].nonzero().flatten().tolist():
            context, token = tokens[i, : at + 1].tolist(), int(tokens[i, at + 1])
            total += log_probs(world.model, context, [token])
    assert float(world.learn(rows)) == pytest.approx(-sum(total) / len(total), rel=1e-4)
    first = float(world.learn(rows))
    for _ in range(30):
        last = float(world.learn(rows))
    assert last < first


def test_ends_and_observations_are_read() -> None:
    agent = dreamer()
    world = LearnedWorld(agent)
    for text, done, success in (
        (SUCCESS, True, True),
        (FAILURE, True, False),
        ("01ens", False, False),
    ):
        tokens = agent.codec.between(text)
        reply, after = world.read(tokens)
        assert (reply.done, reply.success, reply.reward) == (done, success, float(success))
        assert after == ([] if done else tokens) and (done or reply.observation == text)
    reply, after = world.read(agent.codec.between("01en")[:-1])
    assert reply.done and not reply.success and after == []
    assert not world.read(agent.codec.between(f"{SUCCESS}0"))[0].success


def test_a_model_that_has_learned_says_what_the_task_would() -> None:
    agent = dreamer(part_rate=0.01)
    world = LearnedWorld(agent)
    (row,) = rows = shown(agent, 1)
    losses = [float(world.learn(rows)) for _ in range(400)]
    assert losses[-1] < 1e-3
    for count in range(1, len(row.turns) + 1):
        part = row.up_to(count) if count < len(row.turns) else row
        start = row.tokens[: row.spans[count - 1][1]]
        asked = part.again(0)
        asked.tokens = list(start)
        ((reply, _),) = world.replies([asked])
        own = row.replies[count - 1]
        assert (reply.done, reply.success) == (own.done, own.success)
        assert reply.observation == own.observation


def test_rounds_are_real_then_imagined_beside_an_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dreams, "ALONE", 1)
    agent = dreamer()
    agent.task = lenient(agent.task)
    part, rows = part_of(agent, ImaginedConversations), kept_rows(agent)
    found = agent.sample_round()
    assert len(rows) == 12 and not found.data.signals["aided"].any() and part.acts == 0.0
    turns = sum(len(row.turns) for row in rows)
    assert part.turns == turns and len(part.kept) == 12
    found = agent.sample_round()
    # One of four problems is real; nine imagined conversations have six of an expert beside them.
    assert found.data.signals["aided"][:, 0].tolist() == [0.0] * 3 + [1.0] * 15
    assert found.data.signals["demonstration"][:, 0].tolist() == [0.0] * 12 + [1.0] * 6
    groups = [i // 3 for i in range(12)] + list(range(4, 10))
    assert found.data.groups["prompt"][:, 0].tolist() == groups
    assert len({row.problem.prompt for row in rows[12:]}) == 6
    turns += sum(len(row.turns) for row in [*rows[:3], *rows[12:]])
    assert part.turns == turns and len(part.kept) == 21
    ends = [found.success[i : i + 3] for i in (3, 6, 9)]
    assert part.acts == sum(0 < int(g.sum()) < 3 for g in ends) / 3
    for row in rows[12:]:
        assert agent.task.reply(row.problem, row.turns).done
    agent.take_in(found)
    own = found.success[:3].double().mean()
    assert float(agent.of_round["rollout/success"]) == pytest.approx(float(own))


def test_it_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dreams, "ALONE", 1)
    monkeypatch.setattr(dreams, "UPDATES", 2)
    agent = dreamer(prompts=2, group=3)
    agent.task = lenient(agent.task)
    before = [p.clone() for p in agent.modules["world"].parameters()]
    again = continued(agent, tmp_path, 2, 2, rounds)
    pairs = zip(before, again.modules["world"].parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)


def test_a_task_of_one_turn_is_refused() -> None:
    with pytest.raises(ConfigError, match="take a task of several turns, such as grid_world"):
        LanguageConfig(task="addition", recipe="dynaweb")


def test_a_part_of_the_distribution_is_refused() -> None:
    """Demonstrations have no probability under it."""
    with pytest.raises(ConfigError, match=r"top_p is 0\.8: recipe dynaweb scores texts"):
        LanguageConfig(task="grid_world", recipe="dynaweb", sampling=Sampling(1.0, 0.8))
