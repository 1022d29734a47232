"""Walks through recorded traces: patches, what stays in the text, and what steps are worth."""

from pathlib import Path

import pytest

from algorithms.language.measures.judged import demonstrated
from algorithms.language.measures.traces import PatchedTraces, cut_returns, judged
from algorithms.language.policy_gradient import LanguageConfig
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.tasks import Problem, text_task
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import (
    continued,
    kept_rows,
    learner,
    part_of,
    scripted,
    starts,
)

FACTS = {"low": 1, "high": 16, "sought": 11, "limit": 6}
PROBLEM = Problem("guess 1-16 in 6", 16, FACTS, state="1-16")
TRACE = ["8", "12", "10", "11"]


@pytest.mark.parametrize(
    ("scores", "match", "returns"),
    [
        ((1, 0.1, 1, 1), (1, 0, 1, 1), (1, 0.1, 1.5, 1)),
        ((1, 1, 0.55), (1, 1, 0), (1.5, 1, 0.55)),
        ((1, 1, 1), (1, 1, 1), (1.75, 1.5, 1)),
        ((0.1,), (0,), (0.1,)),
    ],
)
def test_no_credit_flows_across_a_patch(
    scores: tuple[float, ...], match: tuple[int, ...], returns: tuple[float, ...]
) -> None:
    assert cut_returns(scores, [bool(m) for m in match]) == pytest.approx(list(returns))


def walked(said: list[list[str]]) -> tuple[PatchedTraces, list[Conversation], object]:
    """Groups of one walk each, that say what is written."""
    agent = learner("guessing", "ui_s1", prompts=1, group=len(said), minibatches=1)
    agent.problem = lambda number: PROBLEM  # type: ignore[method-assign]
    walks = [iter(turns) for turns in said]
    order = iter(range(10**6))
    alive = list(range(len(said)))

    def speak(row: Conversation) -> str:
        # Walks take their turns in their order; those that have ended are left out.
        place = next(order) % len(alive)
        return next(walks[alive[place]])

    scripted(agent, speak)
    rows = kept_rows(agent)
    assert [turn for turn, _ in demonstrated(agent.task, PROBLEM)] == TRACE
    found = agent.sample_round()
    return part_of(agent, PatchedTraces), rows, found


def test_patches_stand_in_the_text_and_own_turns_are_learned_from() -> None:
    part, rows, found = walked([["8", "3", "10", "11"]])
    assert part.acts == 1
    task = text_task("guessing")
    heard = [task.reply(PROBLEM, TRACE[: k + 1]).observation for k in range(4)]
    assert [row.turns for row in rows] == [
        ["8"], ["8", "3"], ["8", "12", "10"], ["8", "12", "10", "11"],
    ]  # fmt: skip
    codec = learner("guessing", "ui_s1").codec
    text = codec.opening(PROBLEM.prompt)
    for k, (row, own) in enumerate(zip(rows, ["8", "3", "10", "11"], strict=True)):
        assert row.tokens[: row.spans[-1][1]] == [*text, *codec.turn(own)]
        ((start, _),) = starts(found, k)  # only the last turn is trained on
        assert start == len(text)
        text = [*text, *codec.turn(TRACE[k]), *codec.between(heard[k])]
    t = found.data
    last = [t.mask[i].nonzero()[-1].item() for i in range(4)]
    rewards = [float(t.reward[i, at]) for i, at in enumerate(last)]
    assert rewards == pytest.approx([1.0, 0.1 + 0.9 * 0.1, 1.0, 1.0])
    assert t.groups["step"][:, 0].tolist() == [0, 1, 2, 3]
    assert t.signals["step_return"][:, 0].tolist() == pytest.approx([1.0, 0.19, 1.5, 1.0])
    assert found.success.tolist() == [False, False, False, True]
    assert part.success == 0.0  # a walk with a patch
    part, rows, _ = walked([TRACE, ["8", "12", "10", "1"]])
    assert part.success == 0.5 and part.acts == 0.5 and len(rows) == 8


def test_a_third_mismatch_ends_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    part, rows, _ = walked([["1", "1", "1", "1"]])
    assert part.acts == 2 and len(rows) == 3
    monkeypatch.setattr("algorithms.language.measures.traces.PATCHES", 0)
    part, rows, _ = walked([["8", "1", "1", "1"]])
    assert part.acts == 0 and [row.turns[-1] for row in rows] == ["8", "1"]


def test_scores_of_turns() -> None:
    task = text_task("calculator")
    facts = {"expression": "37*(48+59-3)", "answer": 3848}
    problem = Problem("37*(48+59-3)=", 3, facts, state=facts["expression"])
    trace = demonstrated(task, problem)
    first = trace[0][0]
    for turn, score, match in (
        (first, 1.0, True),
        ("calc(48+59)", 0.1 + 0.9 * 0.5, False),
        ("answer 3", 0.1 + 0.9 * 0.1, False),
        ("calc(1/0)", 0.9 * 0.5, False),
        ("x", 0.0, False),
    ):
        assert judged(task, problem, trace, turn, 0) == (pytest.approx(score), match)


def test_one_turn_has_no_trace() -> None:
    with pytest.raises(ConfigError, match="traces of several turns, and addition has one turn"):
        LanguageConfig(task="addition", recipe="ui_s1")


def test_it_resumes_exactly(tmp_path: Path) -> None:
    agent = learner("guessing", "ui_s1", levels=(8,), turn_tokens=3)
    continued(agent, tmp_path, 2, 1)
