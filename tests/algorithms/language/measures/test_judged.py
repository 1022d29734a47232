"""What the task's program says of turns, by hand."""

import random

import pytest

from algorithms.language.measures.flaws import Flawed
from algorithms.language.measures.judged import (
    MatchScore,
    ProcessReward,
    ReasoningConsistency,
    TaskSignals,
    as_shown,
    call_score,
)
from algorithms.language.policy_gradient import LanguageConfig
from algorithms.language.tasks import Problem, text_task
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import at_turns, ends, learner, part_of, told, whole

SUM = Problem("3+4*2=", 2, {"expression": "3+4*2", "answer": 11})
FORMED = Problem("4+7+5 in 11:", 3, {"numbers": [4, 7, 5], "target": 11})
EXPRESSION = Problem(
    "(2+3)*(4+5)*2=",
    4,
    {"expression": "(2+3)*(4+5)*2", "answer": 90},
    state="(2+3)*(4+5)*2",
)
SUMS = Problem("2+3*4+(5+6)=", 4, {"expression": "2+3*4+(5+6)", "answer": 25}, state="2+3*4+(5+6)")
RANGE = Problem("guess 1-8 in 5", 8, {"low": 1, "high": 8, "sought": 6, "limit": 5}, state="1-8")


def test_signals_of_replies() -> None:
    agent = learner("formatted", "stable_reinforce")
    found = told(agent, [(FORMED, ["<11;16><16>"]), (FORMED, ["<16>"]), (FORMED, ["16"])])
    found = part_of(agent, TaskSignals).measure(found)
    assert set(found.data.signals) == {"format_reward"}  # what the recipe does not read is left out
    assert whole(found, found.data.signals["format_reward"]) == [1.0, 0.5, 0.0]
    agent = learner("formatted", "gdpo")
    found = told(agent, [(FORMED, ["<11;16><16>"]), (FORMED, ["<16><16>"]), (FORMED, [""])])
    found = part_of(agent, TaskSignals).measure(found)
    wanted = [1.0, pytest.approx(8 / 11), 0.0]
    assert whole(found, found.data.signals["length_reward"]) == wanted


def test_void_turns_and_tool_errors() -> None:
    chats = [
        (EXPRESSION, ["calc(2+3)", "what", "calc(1/0)", "calc(4+5)", "answer 90"]),
        (EXPRESSION, ["answer 90"]),
    ]
    agent = learner("calculator", "simple_tir")
    found = part_of(agent, TaskSignals).measure(told(agent, chats))
    steps = at_turns(found, found.data.signals["void"])
    assert [set(turn) for turn in steps[0]] == [{0.0}, {1.0}, {0.0}, {0.0}, {0.0}]
    agent = learner("calculator", "grpo_roc")
    found = part_of(agent, TaskSignals).measure(told(agent, chats))
    assert whole(found, found.data.signals["penalty"]) == [pytest.approx(0.2), 0.0]


def test_flawed_answers() -> None:
    agent = learner("chain", "fapo")
    turns = ["4*2=8;3+8=11;11", "4*2=9;3+9=12;11", "4*2=8;3+8=11;12", "11", "2*4=8;4*2=8;11"]
    found = part_of(agent, Flawed).measure(told(agent, [(SUM, [turn]) for turn in turns]))
    # "11" alone says the value of nothing that was worked out, but it is that of the expression.
    assert whole(found, found.data.signals["flawed"]) == [0.0, 1.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("turn", "agrees"),
    [
        ("<11;16><16>", 1.0),
        ("<4+7=11;11+5=16><16>", 1.0),
        ("<4+7=11;11+5=16><17>", 0.0),
        ("<17><17>", 1.0),
        ("<16>", 0.0),
        ("16", 0.0),
        ("", 0.0),
        ("<16><x>", 0.0),
        ("<x><y>", 0.0),
    ],
)
def test_reasoning_and_answer_agree(turn: str, agrees: float) -> None:
    agent = learner("formatted", "stable_reinforce")
    found = part_of(agent, ReasoningConsistency).measure(told(agent, [(FORMED, [turn])]))
    assert whole(found, found.data.signals["consistency"]) == [agrees]


def test_process_rewards_of_steps() -> None:
    agent = learner("chain", "mapo_mixed")
    turns = ["4*2=8;3+8=11;11", "4*2=9;3+9=12;11", "11", ""]
    found = part_of(agent, ProcessReward).measure(told(agent, [(SUM, [turn]) for turn in turns]))
    wanted = [[1.0], [pytest.approx(1 / 3)], [1.0], [0.0]]
    assert ends(found, found.data.signals["process_reward"]) == wanted


def test_turns_that_do_what_a_demonstration_does() -> None:
    agent = learner("guessing", "mapo_mixed")
    # Halving 1-8 is 4, 5-8 is 6; 5 after 4 leaves another range, "?" leaves the range as it is.
    found = told(agent, [(RANGE, ["4", "6"]), (RANGE, ["4", "5", "x", "7", "6"]), (RANGE, ["6"])])
    found = part_of(agent, ProcessReward).measure(found)
    good = [[1.0, 1.0], [1.0, 0.0, 0.0, 1.0, 1.0], [1.0]]
    assert ends(found, found.data.signals["process_reward"]) == good


def test_a_turn_that_leads_to_the_same_state_matches() -> None:
    task, rng = text_task("grid_world"), random.Random(3)
    problem = task.problem(3, rng)
    way: list[str] = []
    while not way or not task.reply(problem, way).done:
        way.append(task.demonstration(problem, way, rng))
    back = {"n": "s", "s": "n", "e": "w", "w": "e"}[way[0]]
    turns = [way[0], back, *way]
    replies = [task.reply(problem, turns[: k + 1]) for k in range(len(turns))]
    found = [as_shown(task, problem, turns, replies, k) for k in range(len(turns))]
    assert found == [True, False, *[True] * len(way)]


def test_calls_matched_with_those_of_a_demonstration() -> None:
    assert call_score("calc(2+3)", "calc(2+3)") == 1.0
    assert call_score("calc(1+3)", "calc(2+3)") == 0.5
    assert call_score("calculate", "calc(2+3)") == call_score("7", "8") == 0.0
    agent = learner("calculator", "matchtir")
    first, second, answer = "calc(2+3*4)", "calc(14+(5+6))", "answer 25"  # what is demonstrated
    found = told(
        agent,
        [
            (SUMS, [second, first, answer]),  # in any order
            (SUMS, [first, first, "so", answer]),  # one is left for a call alike in name
            (SUMS, ["calc(1)", "calc(7)", "calc(8)", second, answer]),  # more than there are
            (SUMS, [answer]),
        ],
    )
    found = part_of(agent, MatchScore).measure(found)
    rows = ends(found, found.data.signals["match_score"])
    assert rows[0] == [1.0, 1.0, 0.0]
    assert sorted(rows[1][:2]) == [0.5, 1.0] and rows[1][2:] == [0.0, 0.0]
    assert sorted(rows[2]) == [0.0, 0.0, 0.0, 0.5, 1.0] and rows[2][3] == 1.0
    assert rows[3] == [0.0]


@pytest.mark.parametrize(
    ("task", "recipe", "reason"),
    [
        ("addition", "gdpo", r"signals\.length_reward, which replies of addition.*: formatted"),
        ("addition", "simple_tir", "calculator, guessing, grid_world"),
        ("guessing", "grpo_roc", r"signals\.penalty.*: calculator"),
        ("addition", "fapo", "tells no steps apart; a task that does: chain"),
        ("addition", "ps_grpo", "paraphrases, which addition does not have.*: retrieval"),
    ],
)
def test_tasks_that_do_not_say_it_are_refused(task: str, recipe: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        LanguageConfig(task=task, recipe=recipe)
