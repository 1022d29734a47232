"""Conversations that go on from stored traces and from corrected steps: what is masked, and what is
whose."""

import random

import pytest
import torch

from algorithms.language.sampling.conversation import Conversation, advance, demonstration
from algorithms.language.sampling.prefixes import PREFIX, TEACHER, begun, corrected, places
from algorithms.language.sampling.rollouts import to_rollouts
from algorithms.language.tasks import Correction, text_task
from mbrl.policy_gradient import Recipe, estimate, loss
from tests.algorithms.language import cases


@pytest.mark.parametrize("task", ["chain", "grid_world"])
def test_a_prefix_is_read_and_not_trained_on(task: str) -> None:
    agent = cases.learner(task, "grpo", group=2)
    problem = agent.problem(0)
    trace = demonstration(agent.codec, agent.task, problem, random.Random(0))
    said = places(trace)
    for count in range(1, len(said)):
        row = begun(trace, count, 7)
        assert row.tokens == trace.tokens[: said[count]]
        assert places(row) == said[:count] and len(row.behaviour) == count
        (end,) = agent.collector.copies([row], [1])
        advance(agent.model, agent.codec, agent.task, [end], agent.collector.limits())
        own = set(places(end)) - set(said[:count])
        rollouts = to_rollouts([end], agent.codec.pad, torch.zeros(0))
        assert {i + 1 for i in rollouts.data.mask[0].nonzero().flatten().tolist()} == own
        assert end.tokens[: said[count]] == row.tokens


def test_no_gradient_at_a_prefix() -> None:
    """The loss of a round with prefixes has none there, by the loss's own arguments, and is that of
    the same ends after the prefix as a prompt, by a loop."""
    agent = cases.learner("chain", "grpo", group=4, levels=(2,))
    trace = demonstration(agent.codec, agent.task, agent.problem(0), random.Random(0))
    rows = agent.collector.copies([begun(trace, 5, 0)], [4])
    advance(agent.model, agent.codec, agent.task, rows, agent.collector.limits())
    for row, r in zip(rows, (1.0, 0.0, 0.0, 1.0), strict=True):
        row.replies[-1] = type(row.replies[-1])(r, True, r == 1)
    rollouts = agent.with_old(agent.collector.to_rollouts(rows, [0, 0, 0, 0]))
    plain = Recipe("plain", "GRPO with PPO's clip alone")
    log_prob = (rollouts.data.log_probs["old"] + 0.1).double().requires_grad_()
    value, _ = loss(plain, log_prob, rollouts.data, estimate(plain, rollouts.data))
    (gradient,) = torch.autograd.grad(value, log_prob)
    where = gradient != 0
    first = trace.spans[0][0] - 1 + 5  # the first step of an end
    assert not where[:, :first].any() and bool(where[:, first].all())
    count = sum(len(row.tokens) - first - 1 for row in rows)
    for i, row in enumerate(rows):
        a = (1 if i in (0, 3) else -1) * 0.5 / (0.5773502691896258 + 1e-4)
        for step in range(first, len(row.tokens) - 1):
            assert float(gradient[i, step]) == pytest.approx(
                -a * 1.1051709180756477 / count, rel=1e-3
            )


def test_a_corrected_step_is_the_teachers_and_what_stands_before_it_is_not() -> None:
    agent = cases.learner("chain", "grpo")
    codec, task = agent.codec, text_task("chain")
    problem = next(p for p in map(agent.problem, range(99)) if p.level == 4)
    shown = task.demonstration(problem, [], random.Random(0))
    first = shown.index(";") + 1
    wrong = f"{shown[:first]}9+9=1;1"
    row = Conversation(problem, codec.opening(problem.prompt))
    row.extend_turn(codec.turn(wrong))
    n = len(wrong) + 1
    row.behaviour, row.model = [-0.1 * i for i in range(n)], [-0.2 * i for i in range(n)]
    row.versions = [3] * n
    row.finish(task, codec, 1)
    error = task.first_error(problem, row.turns)
    assert error is not None and error.start == first and not error.ends
    new = corrected(row, error, codec, task, 49, 5, 11)
    assert new is not None and not new.done
    ((start, stop, who),) = new.origins
    assert who == TEACHER and codec.decode(new.tokens[start:stop]) == error.text
    assert codec.decode(new.tokens[row.spans[0][0] : start]) == shown[:first]
    assert new.behaviour[:first] == row.behaviour[:first]  # its own, as they were
    assert new.behaviour[first:] == [0.0] * len(error.text)
    assert new.versions == [3] * first + [5] * len(error.text)
    assert shown.startswith(shown[:first] + error.text)
    assert corrected(row, error, codec, task, first + len(error.text), 5, 11) is None  # no room
    assert row.tokens[row.spans[0][0] :] == codec.turn(wrong)  # as it was


def test_a_corrected_turn_that_ends_is_answered() -> None:
    agent = cases.learner("calculator", "grpo", levels=(3,))
    codec, task, problem = agent.codec, agent.task, agent.problem(0)
    row = Conversation(problem, codec.opening(problem.prompt))
    for turn in ("calc(1/0)", "answer 1"):
        row.extend_turn(codec.turn(turn))
        row.behaviour += [-1.0] * (len(turn) + 1)
        row.model += [-1.0] * (len(turn) + 1)
        row.versions += [0] * (len(turn) + 1)
        row.finish(task, codec, 8)
    error = task.first_error(problem, row.turns)
    assert error == Correction(0, 0, task.demonstration(problem, [], random.Random(0)))
    new = corrected(row, error, codec, task, 33, 0, 0)
    assert new is not None and new.turns == [error.text] and not new.done
    assert new.replies == [task.reply(problem, [error.text])]
    assert new.tokens[new.spans[0][1] :] == codec.between(new.replies[0].observation)
    rollouts = to_rollouts([row, new.again(0)], codec.pad, torch.zeros(0))
    assert rollouts.data.mask.sum(1).tolist() == [len(row.behaviour), len(new.behaviour)]


def test_origins_survive_a_checkpoint() -> None:
    agent = cases.learner("chain", "grpo")
    trace = demonstration(agent.codec, agent.task, agent.problem(1), random.Random(0))
    row = begun(trace, 3, 0)
    assert row.origins == [(row.spans[0][0], row.spans[0][1], PREFIX)]
    assert Conversation.from_plain(row.plain()) == row
    old = row.plain()
    del old["origins"]
    assert Conversation.from_plain(old).origins == []
