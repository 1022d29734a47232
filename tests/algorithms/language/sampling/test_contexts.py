"""Answers in other contexts: same tokens, exact log-probs, exact weights."""

import math
import random

import pytest
import torch

from algorithms.language.measures.guided import bare, helped
from algorithms.language.models.vocabulary import Characters
from algorithms.language.sampling.contexts import (
    MARK,
    contexts,
    distributions,
    in_contexts,
    log_probs,
    opened_with,
    opening,
)
from algorithms.language.sampling.conversation import Conversation, GenerationLimits, advance
from algorithms.language.sampling.rollouts import to_rollouts
from algorithms.language.tasks import Problem, text_task
from tests.algorithms.language import cases
from tests.algorithms.language.small import Digits, tiny

CODEC = Characters()
PROBLEM = Problem("0-9", 9, {"secret": 3}, state="new")


def test_the_mark_stands_in_no_prompt() -> None:
    assert CODEC.decode(opening(CODEC, PROBLEM, "abc")[1:-1]) == f"0-9{MARK}abc"
    assert opening(CODEC, PROBLEM) == CODEC.opening("0-9")
    for name in ("chain", "calculator", "kernels", "grid_world", "planned", "brackets"):
        task, rng = text_task(name), random.Random(0)
        for level in task.levels:
            assert all(MARK not in task.draw(level, rng).prompt for _ in range(20))


def hinted_rows(turn_tokens: int = 2) -> list[Conversation]:
    model, task = tiny(), Digits()
    rows = [Conversation(PROBLEM, opening(CODEC, PROBLEM, "z" * k), k) for k in range(1, 6)]
    advance(model, CODEC, task, rows, GenerationLimits(turn_tokens=turn_tokens))
    return rows


def test_only_what_stands_before_the_turns_changes() -> None:
    for row in hinted_rows():
        row.origins = [(row.spans[-1][0], row.spans[-1][1], "teacher")]
        texts = contexts(row)
        assert in_contexts(row, texts).plain() == row.plain()
        other = opened_with(row, opening(CODEC, PROBLEM))
        said = [row.tokens[a:b] for a, b in row.spans]
        assert [other.tokens[a:b] for a, b in other.spans] == said
        assert contexts(other) == [opening(CODEC, PROBLEM), *texts[1:]]
        assert other.turns == row.turns and other.replies == row.replies
        assert other.behaviour == row.behaviour
        ((a, b, who),) = other.origins
        assert (a, b) == other.spans[-1] and who == "teacher"
        assert row.origins == [(row.spans[-1][0], row.spans[-1][1], "teacher")]  # as it was


def test_log_probs_are_of_the_context_that_is_scored() -> None:
    """Sampled with a hint, scored without: each against one pass a token."""
    model, rows = tiny(), hinted_rows()
    for row in rows:
        said = [t for a, b in row.spans for t in row.tokens[a:b]]
        slow = []
        for a, b in row.spans:
            slow += cases.log_probs(model, row.tokens[:a], row.tokens[a:b])
        assert row.behaviour == pytest.approx(slow, abs=1e-9) and len(said) == len(slow)
    plain = [opened_with(row, opening(CODEC, PROBLEM)) for row in rows]
    rollouts = to_rollouts(plain, CODEC.pad, torch.zeros(0, dtype=torch.float64))
    for k in (0, 3):
        texts = [opening(CODEC, PROBLEM, "y" * k) for _ in rows]
        found = log_probs(model, rollouts, CODEC, texts, 1.0, 2)
        whole = distributions(model, rollouts, CODEC, texts, 1.0, 2)
        assert not found[~rollouts.data.mask].any() and not whole[~rollouts.data.mask].any()
        for i, row in enumerate(plain):
            there = opened_with(row, texts[i])
            slow = []
            for a, b in there.spans:
                slow += cases.log_probs(model, there.tokens[:a], there.tokens[a:b])
            assert found[i, rollouts.data.mask[i]].tolist() == pytest.approx(slow, abs=1e-9)
            steps = rollouts.data.mask[i].nonzero().flatten().tolist()
            taken = [float(whole[i, s, rollouts.tokens[i, s + 1]]) for s in steps]
            assert taken == pytest.approx(slow, abs=1e-9)
            assert whole[i, steps].exp().sum(-1).tolist() == pytest.approx([1.0] * len(steps))


def test_weights_are_exact_over_all_answers() -> None:
    """Sum over all answers y of one token: pi(y | hint) w(y) f(y) = pi(y | bare) f(y)."""
    model = tiny()
    with torch.no_grad():
        with_hint, without = (
            model(torch.tensor([opening(CODEC, PROBLEM, text)]))[0, -1].log_softmax(-1)
            for text in ("abc", "")
        )
    value = torch.arange(CODEC.size, dtype=torch.float64).sin()
    weighted = 0.0
    for y in range(CODEC.size):
        row = hinted_rows(1)[0].again(0)
        row.tokens, row.spans = [*opening(CODEC, PROBLEM, "abc"), y], [(9, 10)]
        row.turns, row.replies = row.turns[:1], row.replies[:1]
        row.behaviour, row.model, row.versions = [float(with_hint[y])], [0.0], [0]
        plain = opened_with(row, opening(CODEC, PROBLEM))
        rollouts = to_rollouts([plain], CODEC.pad, torch.zeros(0, dtype=torch.float64))
        old = log_probs(model, rollouts, CODEC, [opening(CODEC, PROBLEM)], 1.0, 8)
        at = rollouts.data.mask
        ratio = float((old - rollouts.data.log_probs["behaviour"])[at].exp())
        weighted += math.exp(float(with_hint[y])) * ratio * float(value[y])
    assert weighted == pytest.approx(float((without.exp() * value).sum()), abs=1e-12)
    assert float((with_hint.exp() * value).sum()) != pytest.approx(weighted, abs=1e-3)


def test_an_agent_scores_without_what_it_sampled_with() -> None:
    agent = cases.learner("kernels", "grpo", levels=(7,), turn_tokens=3)
    problem = agent.problem(0)
    ((row,),) = helped(agent, [(problem, "1001")], 1)
    assert row.tokens[: len("1001") + len(problem.prompt) + 3] == agent.codec.opening(
        f"{problem.prompt}#1001"
    )
    (plain,) = bare(agent, [row])
    found = agent.with_old(agent.collector.to_rollouts([plain], [0]))
    slow, told = [], []
    for (a, b), (c, d) in zip(plain.spans, row.spans, strict=True):
        slow += cases.log_probs(agent.model, plain.tokens[:a], plain.tokens[a:b])
        told += cases.log_probs(agent.model, row.tokens[:c], row.tokens[c:d])
    at = found.data.mask[0]
    assert found.data.log_probs["old"][0, at].tolist() == pytest.approx(slow, abs=1e-4)
    assert found.data.log_probs["behaviour"][0, at].tolist() == pytest.approx(told, abs=1e-4)
    assert max(abs(a - b) for a, b in zip(slow, told, strict=True)) > 0.01
