"""Contexts to recover from, and conversations without the errors that they recovered from."""

import random
from pathlib import Path

import pytest
import torch

from algorithms.language.measures.recoveries import ErrorContexts, PurifiedTurns, purified
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.tasks import Problem, text_task
from mbrl.errors import ConfigError
from mbrl.policy_gradient import loss
from tests.algorithms.language.cases import (
    continued,
    kept_rows,
    learner,
    lenient,
    part_of,
    rounds,
    scripted,
)

PROBLEM = Problem("(3+4)*5*6+1=", 4, {"expression": "(3+4)*5*6+1", "answer": 211}, state="x")


def told(turns: list[str]) -> Conversation:
    """A conversation about the problem in which that was said, the tokens with log-probs 0, -1, -2
    and so on."""
    task = text_task("calculator")
    agent = learner("calculator", "grpo")
    row = Conversation(PROBLEM, agent.codec.opening(PROBLEM.prompt))
    for turn in turns:
        tokens = agent.codec.turn(turn)
        row.extend_turn(tokens)
        n = len(row.behaviour)
        row.behaviour += [-float(n + i) for i in range(len(tokens))]
        row.model += [-float(n + i) for i in range(len(tokens))]
        row.versions += [0] * len(tokens)
        row.finish(task, agent.codec, 8)
    assert row.done
    return row


def clean(row: Conversation) -> Conversation:
    return purified(row, text_task("calculator"), learner("calculator", "grpo").codec)


def test_errors_that_were_recovered_from_are_gone() -> None:
    raw = told(
        ["calc(3/0)", "calc((3+4)*5)", "nonsense", "calc(1)calc", "calc(35*6+1)", "answer 211"]
    )
    new = clean(raw)
    assert new.turns == ["calc((3+4)*5)", "calc(35*6+1)", "answer 211"]
    task = text_task("calculator")
    assert new.replies == [task.reply(PROBLEM, new.turns[: k + 1]) for k in range(3)]
    assert new.replies[-1].success and new.done
    said = [raw.tokens[a:b] for a, b in raw.spans]
    assert [new.tokens[a:b] for a, b in new.spans] == [said[1], said[4], said[5]]
    first = len(said[0])
    at = sum(map(len, said[:4]))
    assert new.behaviour[: len(said[1])] == [-float(first + i) for i in range(len(said[1]))]
    assert new.behaviour[len(said[1])] == -float(at)
    assert clean(new) is new  # once is enough
    assert raw.turns[0] == "calc(3/0)"  # as it was


@pytest.mark.parametrize(
    "turns",
    [
        ["calc((3+4)*5)", "calc(35*6+1)", "answer 211"],  # nothing failed
        ["calc(3/0)"] * 8,  # nothing came after
        ["calc((3+4)*5)", *["calc(1/0)"] * 7],  # what failed is at the end
        ["calc(1/0)", *["calc(1+1)"] * 7],  # over by its length: without an error it would not be
    ],
)
def test_others_stay_as_they_are(turns: list[str]) -> None:
    raw = told(turns)
    assert clean(raw) is raw


def test_a_round_of_purified_conversations() -> None:
    agent = learner("calculator", "cleaner", levels=(2,), group=2)
    count = [0]

    def speak(row: Conversation) -> str:
        count[0] += not row.turns
        if not row.turns and count[0] % 2:
            return "calc(1/0)"
        return agent.task.demonstration(row.problem, row.turns, random.Random(0))

    scripted(agent, speak)
    rows = kept_rows(agent)
    found = agent.sample_round()
    assert part_of(agent, PurifiedTurns).acts == 0.5
    assert not any("calc(1/0)" in row.turns for row in rows) and bool(found.success.all())
    # Old log-probs are of the purified text, those of sampling are what they were.
    t = found.data
    assert torch.allclose(t.log_probs["behaviour"][t.mask], torch.tensor(-1.0))
    again = agent.measured(agent.model, found)[0]
    assert torch.equal(again, t.log_probs["old"])
    assert not t.signals["aided"].any()


def erring(agent: LanguagePolicyGradient, recover: bool) -> list[Conversation]:
    """It errs in its first turn, and then says nonsense, or solves the rest if it goes on after an
    error that was given."""

    def speak(row: Conversation) -> str:
        if row.given and recover:
            return agent.task.demonstration(row.problem, row.turns, random.Random(0))
        return "calc(1/0)" if not row.turns else "?"

    return scripted(agent, speak)


def test_contexts_end_with_the_diagnosis_and_are_not_trained_on() -> None:
    agent = learner("calculator", "fission_grpo", levels=(2,), prompts=4, group=3)
    known = erring(agent, recover=True)
    rows, part = kept_rows(agent), part_of(agent, ErrorContexts)
    found = agent.sample_round()
    assert part.acts == 1.0 and len(rows) == 12 + 2 * 3 and len(part.waiting) == 2
    prompts = found.data.groups["prompt"][:, 0].tolist()
    assert prompts == [i // 3 for i in range(18)]  # groups of their own
    assert found.success.tolist() == [False] * 12 + [True] * 6
    assert found.data.signals["aided"][:, 0].tolist() == [0.0] * 12 + [1.0] * 6
    for i in range(12, 18):
        row = rows[i]
        start = next(k for k in known if k.seed == row.seed)
        shown = agent.task.diagnosis(row.problem, ["calc(1/0)"])
        assert start.given == 1 and start.turns == ["calc(1/0)"]
        text = agent.codec.opening(row.problem.prompt)
        assert start.tokens == [
            *text,
            *agent.codec.turn("calc(1/0)"),
            *agent.codec.between(shown),
        ]
        assert not found.data.mask[i, : len(start.tokens) - 1].any()
        assert bool(found.data.mask[i, len(start.tokens) - 1])
    # The newest context came first.
    newest = [rows[12].problem, rows[15].problem]
    assert newest == [rows[9].problem, rows[6].problem]


def test_a_groups_rewards_do_not_reach_another() -> None:
    agent = learner("calculator", "fission_grpo", levels=(2,), prompts=2, group=3)
    erring(agent, recover=True)
    agent.collect()
    assert agent.data is not None
    t = agent.data.data
    base = agent.data.estimate.advantage

    from mbrl.policy_gradient import estimate

    reward = t.reward.clone()
    row = 6  # of the recovered group
    last = int(t.mask[row].nonzero().max())
    reward[row, last] = 0.0
    import dataclasses

    new = estimate(agent.recipe, dataclasses.replace(t, reward=reward)).advantage
    assert torch.equal(new[:6], base[:6]) and not torch.equal(new[6:9], base[6:9])
    log_prob = t.log_probs["old"].clone().requires_grad_()
    value, _ = loss(
        agent.recipe, log_prob, t, estimate(agent.recipe, dataclasses.replace(t, reward=reward))
    )
    (gradient,) = torch.autograd.grad(value, log_prob)
    assert not gradient[~t.mask].any() and bool(gradient[6:9].any())


def test_old_contexts_are_dropped() -> None:
    agent = learner("calculator", "fission_grpo", levels=(2,), prompts=4, group=2)
    erring(agent, recover=False)
    part = part_of(agent, ErrorContexts)
    seen: list[str] = []
    for _ in range(8):
        agent.sample_round()
        assert len(part.waiting) <= 8
        seen += [v["problem"]["prompt"] for v in part.waiting]
    agent.task = text_task("calculator")
    scripted(agent, lambda row: agent.task.demonstration(row.problem, row.turns, random.Random(0)))
    left = len(part.waiting)
    agent.sample_round()  # no new ones: older ones are used up
    assert part.acts == 0 and len(part.waiting) == left - 2


def test_without_errors_it_says_so() -> None:
    agent = learner("calculator", "fission_grpo", levels=(2,))
    scripted(agent, lambda row: agent.task.demonstration(row.problem, row.turns, random.Random(0)))
    agent.collect()
    assert agent.trainer.silent == ["advantage", "mechanism"]


@pytest.mark.parametrize("name", ["fission_grpo", "cleaner"])
def test_they_resume_exactly(name: str, tmp_path: Path) -> None:
    agent = learner("calculator", name, levels=(2,), turn_tokens=4)
    agent.task = lenient(agent.task)
    continued(agent, tmp_path, 2, 2, rounds)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs diagnoses of errors, which addition.*: calc"):
        LanguageConfig(task="addition", recipe="fission_grpo")
    with pytest.raises(ConfigError, match=r"needs signals of failed turns, which chain"):
        LanguageConfig(task="chain", recipe="cleaner")
