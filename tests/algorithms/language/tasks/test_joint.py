"""Joint tasks: problems, replies and helps are those of the parts."""

import dataclasses
import random

import pytest

from algorithms.language.tasks import (
    TASKS,
    JointTask,
    Problem,
    TextTask,
    level_name,
    parts_of,
    text_task,
)
from mbrl.errors import ConfigError
from tests.algorithms.language.tasks.test_tasks import JUNK

NAMES = ("chain+brackets", "addition+guessing+chain", "calculator+kernels")


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_the_parts_own(name: str) -> None:
    task = text_task(name)
    assert isinstance(task, JointTask) and task is text_task(name)
    for k, part in enumerate(text_task(n) for n in name.split("+")):
        for level in part.levels:
            mixed = 1000 * k + level
            rng, same = random.Random(level), random.Random(level)
            problem, own = (
                task.problem(mixed, rng, held_out=True),
                part.problem(level, same, held_out=True),
            )
            assert problem == dataclasses.replace(own, level=mixed, task=part.name)
            assert problem.held_out and task.part(problem) is part
            turns: list[str] = []
            while True:
                shown = task.demonstration(problem, turns, random.Random(0))
                assert shown == part.demonstration(own, turns, random.Random(0))
                turns.append(shown)
                assert task.reply(problem, turns) == part.reply(own, turns)
                assert task.steps(problem, turns) == (part.steps(own, turns) if has(task) else [])
                if part.reply(own, turns).done:
                    break
            assert level_name(task, mixed) == f"{part.name} {level}"


def has(task: TextTask) -> bool:
    return type(task).steps is not TextTask.steps


@pytest.mark.parametrize("name", NAMES)
def test_junk_is_answered_and_solved_problems_end(name: str) -> None:
    task = text_task(name)
    for level in task.trained:
        problem = task.problem(level, random.Random(level))
        assert ended(task, problem) == "wins"
        for junk in JUNK[:12]:
            reply = dataclasses.replace(task.reply(problem, [junk]), signals={})
            assert not reply.success and reply.reward == 0


def ended(task: TextTask, problem: Problem) -> str:
    """What demonstrated turns come to, of no more characters than turns may have."""
    turns: list[str] = []
    while True:
        turns.append(task.demonstration(problem, turns, random.Random(0)))
        reply = task.reply(problem, turns)
        assert len(turns[-1]) <= task.turn_length and set(task.signals) <= set(reply.signals)
        assert len(reply.observation) <= task.prompt_length and len(turns) <= task.max_turns
        if reply.done:
            return "wins" if reply.success else "loses"


def test_helps_are_there_where_all_parts_have_them() -> None:
    both, one = text_task("chain+brackets"), text_task("chain+sorting")
    assert type(both).hint is not TextTask.hint and type(one).hint is TextTask.hint
    assert type(both).first_error is not TextTask.first_error
    problem = both.problem(1004, random.Random(0))
    own = TASKS["brackets"].problem(4, random.Random(0))
    assert both.hint(problem, []) == TASKS["brackets"].hint(own, []) != ""
    assert both.first_error(problem, ["(("]) == TASKS["brackets"].first_error(own, ["(("])
    both = text_task("calculator+kernels")
    problem = both.problem(1007, random.Random(0))
    assert both.diagnosis(problem, ["x"]) == TASKS["kernels"].diagnosis(
        TASKS["kernels"].problem(7, random.Random(0)), ["x"]
    )


def test_sizes_are_the_largest_and_signals_those_of_all() -> None:
    task = text_task("calculator+guessing")
    a, b = TASKS["calculator"], TASKS["guessing"]
    assert task.max_turns == max(a.max_turns, b.max_turns)
    assert task.turn_length == max(a.turn_length, b.turn_length)
    assert set(task.signals) == set(a.signals) & set(b.signals)
    assert parts_of(task) == (a, b) and parts_of(a) == (a,)
    assert level_name(a, 3) == "3"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("chain+chain", "each once"),
        ("chain+sortin", "did you mean 'sorting'"),
        ("chain+story", "story has texts of any characters"),
    ],
)
def test_what_is_no_joint_task_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        text_task(name)


def test_levels_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no level 7, it has 1, 2"):
        text_task("chain+sorting").problem(7, random.Random(0))
