"""Programs that find the first wrong step and correct it, hints that do not hold the answer, and
diagnoses: each against other ways to find them."""

import itertools
import random
import re

import pytest

from algorithms.language.tasks import TASKS, Problem
from algorithms.language.tasks.brackets import balanced, completed

ABLE = ("chain", "calculator", "kernels", "grid_world", "planned", "brackets")


def spoiled(name: str, seed: int) -> tuple[Problem, list[str]]:
    """A problem, and turns of one who mostly can do it."""
    task, rng = TASKS[name], random.Random(f"{name} {seed}")
    problem = task.problem(rng.choice(task.levels), rng)
    turns: list[str] = []
    while True:
        turn = list(task.demonstration(problem, turns, rng))
        if rng.random() < 0.4:
            turn[rng.randrange(len(turn))] = rng.choice("0123456789;+*=()[]{}nesw")
        if rng.random() < 0.2:
            turn = turn[: rng.randrange(len(turn))] or ["x"]
        turns.append("".join(turn))
        if task.reply(problem, turns).done:
            return problem, turns


@pytest.mark.parametrize("name", ABLE)
def test_correcting_every_first_error_ends_in_a_right_answer(name: str) -> None:
    task, found = TASKS[name], 0
    for seed in range(150):
        problem, turns = spoiled(name, seed)
        for _ in range(60):
            error = task.first_error(problem, turns)
            if error is None:
                break
            found += 1
            assert turns[error.turn][: error.start] == turns[error.turn][: error.start]
            turns = [*turns[: error.turn], turns[error.turn][: error.start] + error.text]
            again = task.first_error(problem, turns)  # the corrected step is right
            if again is not None:
                assert (again.turn, again.start) > (error.turn, error.start)
            if error.ends:
                while not task.reply(problem, turns).done:
                    turns.append(task.demonstration(problem, turns, random.Random(0)))
        assert error is None
        if name in ("chain", "brackets", "calculator", "grid_world"):
            reply = task.reply(problem, turns)
            assert reply.success or len(turns) >= task.max_turns or name == "grid_world"
    assert found > (10 if name == "kernels" else 50)  # one right program is enough there


def test_the_first_error_of_a_chain_by_hand() -> None:
    task = TASKS["chain"]
    problem = Problem("3+4*2=", 2, {"expression": "3+4*2", "answer": 11})

    def first(turn: str) -> tuple[int, str, bool] | None:
        error = task.first_error(problem, [turn])
        return None if error is None else (error.start, error.text, error.ends)

    assert first("4*2=8;3+8=11;11") is None
    assert first("4*2=9;3+9=12;12") == (0, "4*2=8;", False)
    assert first("4*2=8;3+8=12;12") == (6, "3+8=11;", False)
    assert first("4*2=8;3+8=11;12") == (13, "11", True)
    assert first("4*2=8;3+8=11;") == (13, "11", True)
    assert first("4*2=8;3+8=11") == (12, ";11", True)
    assert first("4*2=8;8") == (6, "3+8=11;", False)
    assert first("4*2=8;11") is None  # the answer is what counts
    assert first("12") == (0, "4*2=8;", False)
    assert first("") == (0, "4*2=8;", False)
    assert first("3+4=7;7*2=14;14") == (0, "4*2=8;", False)


def in_order(text: str) -> list[int]:
    return ["([{)]}".index(c) for c in text]


def test_the_first_error_in_brackets_by_enumeration() -> None:
    """The longest beginning that some right answer has."""
    task = TASKS["brackets"]
    for broken, length in (("([", 4), (")(", 4), ("(]", 4), ("[)(", 6)):
        problem = Problem(f"fix {broken}:", 3, {"broken": broken, "length": length})
        right = [
            text
            for text in map("".join, itertools.product("([{)]}", repeat=length))
            if task.reply(problem, [text]).success
        ]
        rng = random.Random(broken)
        for _ in range(60):
            turn = "".join(rng.choice("([{)]}x") for _ in range(rng.randrange(length + 2)))
            most = max(
                n for n in range(len(turn) + 1) if any(r.startswith(turn[:n]) for r in right)
            )
            error = task.first_error(problem, [turn])
            if turn in right:
                assert error is None
                continue
            assert error is not None and error.start == most
            assert any(r.startswith(turn[:most] + error.text) for r in right)
            assert error.ends == (most + len(error.text) == length)
        assert completed("", broken, length) == min(right, key=in_order)
        assert all(balanced(r) for r in right)


@pytest.mark.parametrize("name", ABLE)
def test_hints_do_not_hold_the_answer(name: str) -> None:
    task, some = TASKS[name], 0
    for seed in range(200):
        rng = random.Random(seed)
        problem = task.problem(rng.choice(task.levels), rng)
        hint = task.hint(problem, [])
        some += bool(hint)
        assert len(hint) <= 24 and hint == task.hint(problem, [])
        if "answer" in problem.facts:
            assert str(problem.facts["answer"]) not in re.findall(r"[0-9]+", hint.partition("=")[2])
        if task.max_turns == 1 or name == "kernels":
            assert not task.reply(problem, [hint] * 1).success
    assert some > 150


def test_the_hint_to_a_chain_is_the_step_after_the_right_ones() -> None:
    task = TASKS["chain"]
    problem = Problem("3+4*2=", 2, {"expression": "3+4*2", "answer": 11})
    assert task.hint(problem, []) == "4*2=8"
    assert task.hint(problem, ["4*2=9;"]) == "4*2=8"
    assert task.hint(problem, ["4*2=8;"]) == "3+8"  # its result is the answer
    assert task.hint(problem, ["4*2=8;3+8=11;"]) == ""


def test_diagnoses_say_what_is_wrong() -> None:
    calculator = TASKS["calculator"]
    problem = Problem("(3+4)*5=", 2, {"expression": "(3+4)*5", "answer": 35}, state="(3+4)*5")
    assert calculator.diagnosis(problem, ["calc(3+4)"]) == ""
    assert calculator.diagnosis(problem, ["calc(3/0)"]) == "error: division by zero#(3+4)*5"
    assert calculator.diagnosis(problem, ["calc(3+4)", "35"]) == "?#7*5"
    assert calculator.diagnosis(problem, ["calc((3+4)*5)", "35"]) == ""  # would hold the answer
    kernels = TASKS["kernels"]
    task = Problem("77x in 76", 7, {"n": 77})
    assert kernels.diagnosis(task, ["ddad"]) == "got 1010#want 1001101"
    assert kernels.diagnosis(task, ["x"]) == "?#want 1001101"
    assert kernels.diagnosis(task, [kernels.demonstration(task, [], random.Random(0))]) == ""
