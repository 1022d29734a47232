"""What holds for every text task, whatever is written in a turn."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.language.models.vocabulary import ALPHABET
from algorithms.language.tasks import TASKS, Problem, Reply, TextTask, text_task
from mbrl.errors import ConfigError

JUNK = [
    "",
    " ",
    "\n",
    "-",
    "--5",
    "+5",
    "1e5",
    "0x10",
    "1_0",
    "1.0",
    "\ufffd",
    "\ufffd5",
    "answer \ufffd",
    "answer",
    "answer 5 5",
    "٣",
    "²",
    "½",
    "ｎ",
    "9" * 5000,
    "-" + "0" * 5000,
    "answer " + "9" * 5000,
    "calc(" + "9" * 5000 + ")",
    "1/0",
    "calc(1/0)",
    "9**9**9",
    "calc(9**9**9)",
    "calc(999999999*999999999*999999999)",
    "calc(999999999*999999999)",
    "calc()",
    "calc",
    "calc(1+1",
    "calc(1+1))",
    "calc(٣+1)",
    "calc(__import__('os'))",
    "(" * 10_000,
    "(" * 10_000 + ")" * 10_000,
    "calc(" + "(" * 10_000 + "1" + ")" * 10_000 + ")",
    "<" * 5000,
    "<><>",
    "<1><\ufffd>",
    ";" * 5000,
    "1+1=2;" * 5000,
    " " * 5000,
    "x" * 100_000,
]

# Those with one form of an answer, in the alphabet of our own model; of the others: test_story.py.
CLOSED = {name: task for name, task in TASKS.items() if not task.open_text}
every_task = pytest.mark.parametrize("task", CLOSED.values(), ids=CLOSED)


def played(task: TextTask, problem: Problem, turns: list[str], rng: random.Random) -> Reply:
    """The end of what the demonstration makes of `turns`, all texts checked on the way."""
    turns = list(turns)
    while True:
        turns.append(task.demonstration(problem, turns, rng))
        assert len(turns[-1]) <= task.turn_length
        assert set(turns[-1]) <= set(ALPHABET)
        reply = checked(task, problem, turns)
        if reply.done:
            return reply


def checked(task: TextTask, problem: Problem, turns: list[str]) -> Reply:
    reply = task.reply(problem, turns)
    assert reply == task.reply(problem, tuple(turns))
    assert len(reply.observation) <= task.prompt_length
    assert set(reply.observation) <= set(ALPHABET)
    graded = task.name in ("kernels", "rating", "intervals")  # turns earn by degrees
    assert 0 <= reply.reward <= 1 if graded else reply.reward == float(reply.success)
    assert reply.done or not reply.success
    assert set(reply.signals) == set(task.signals)
    assert all(0 <= value <= 1 for value in reply.signals.values())
    assert reply.done or len(turns) < task.max_turns
    return reply


@every_task
def test_demonstrations_succeed_and_texts_fit(task: TextTask) -> None:
    for level in task.levels:
        for seed in range(40):
            problem = task.problem(level, random.Random(seed))
            assert problem == task.problem(level, random.Random(seed))
            assert 0 < len(problem.prompt) <= task.prompt_length
            assert set(problem.prompt) <= set(ALPHABET)
            assert problem.level == level
            assert json.loads(json.dumps(problem.facts)) == problem.facts
            assert played(task, problem, [], random.Random(seed)).success


@every_task
def test_junk_is_answered_and_earns_nothing(task: TextTask) -> None:
    for level in task.levels:
        problem = task.problem(level, random.Random(level))
        for junk in JUNK:
            turns: list[str] = []
            while True:
                turns.append(junk)
                reply = checked(task, problem, turns)
                ends = [step.end for step in task.steps(problem, turns)]
                assert ends == sorted(set(ends)) and max(ends, default=0) <= len(junk)
                if reply.done:
                    break
                if len(turns) == 1:
                    assert task.demonstration(problem, turns, random.Random(0))
            assert reply.reward == 0


@every_task
def test_nothing_may_stand_around_an_answer(task: TextTask) -> None:
    for seed in range(20):
        problem = task.problem(task.trained[-1], random.Random(seed))
        turns: list[str] = []
        while True:
            right = task.demonstration(problem, turns, random.Random(seed))
            turns.append(right)
            if task.reply(problem, turns).done:
                break
        for around in ("{} ", " {}", "{}\n", "\ufffd{}", "{}\ufffd", "{}.", "({})", "{}x", "+{}"):
            turns[-1] = around.format(right)
            assert checked(task, problem, turns).reward == 0, turns


@pytest.mark.parametrize(("name", "spare"), [("calculator", 3), ("guessing", 1), ("grid_world", 6)])
def test_junk_leaves_the_state_and_can_be_made_good(name: str, spare: int) -> None:
    task = text_task(name)
    for level in task.levels:
        for seed in range(25):
            rng = random.Random(seed)
            problem = task.problem(level, rng)
            at = rng.randrange(2)
            turns: list[str] = []
            state = problem.state
            for _ in range(at):
                turns.append(task.demonstration(problem, turns, rng))
                reply = checked(task, problem, turns)
                state = reply.state
                if reply.done:
                    break
            else:
                for _ in range(spare):
                    turns.append(rng.choice(JUNK))
                    reply = checked(task, problem, turns)
                    assert not reply.done
                    assert reply.state == state
                    assert reply.signals["void"] or reply.signals.get("penalty", turns[-1])
                assert played(task, problem, turns, rng).success


@every_task
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_text_is_graded(task: TextTask, data: st.DataObject) -> None:
    rng = random.Random(data.draw(st.integers(0, 10**6)))
    problem = task.problem(data.draw(st.sampled_from(task.levels)), rng)
    own = st.text(ALPHABET, max_size=50)
    near = st.text("0123456789+*=;() <>-ensw", max_size=12)
    call = near.map("calc({})".format)
    turns: list[str] = []
    for turn in data.draw(st.lists(own | near | call | st.text(), min_size=25, max_size=25)):
        turns.append(turn)
        reply = checked(task, problem, turns)
        task.steps(problem, turns)
        if reply.done:
            break
        task.demonstration(problem, turns, rng)
    assert reply.done


@every_task
def test_levels_are_held_out_and_problems_differ(task: TextTask) -> None:
    """Of one digit there are 100 sums and differences, and as many products."""
    assert set(task.trained) < set(task.levels)
    held_out = set(task.levels) - set(task.trained)
    assert max(held_out) > max(task.trained)
    assert min(held_out) < max(task.levels)
    assert list(task.levels) == sorted(set(task.levels))
    for level in task.trained:
        rng = random.Random(0)
        problems = [task.problem(level, rng) for _ in range(200)]
        assert len({json.dumps([p.prompt, p.facts]) for p in problems}) >= 50
    with pytest.raises(ConfigError, match="has no level 77"):
        task.problem(77, random.Random(0))


def test_tasks_by_name() -> None:
    assert all(text_task(name).name == name and task.title for name, task in TASKS.items())
    with pytest.raises(ConfigError, match="did you mean 'sorting'"):
        text_task("sortin")
