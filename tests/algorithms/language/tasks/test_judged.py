"""Judgements about answers: labels by the task's own grading, problems inside."""

import random
from collections import Counter

import pytest

from algorithms.language.tasks import text_task
from algorithms.language.tasks.judged import final, inside, judged
from mbrl.errors import ConfigError


@pytest.mark.parametrize("name", ["addition", "chain", "sorting", "brackets", "formatted"])
def test_labels_are_right(name: str) -> None:
    once, task = text_task(name), text_task(f"judged-{name}")
    kinds: Counter[str] = Counter()
    for seed in range(120):
        rng = random.Random(seed)
        problem = task.problem(once.trained[-1], rng, held_out=seed % 2 == 0)
        assert problem == task.problem(
            once.trained[-1], random.Random(seed), held_out=seed % 2 == 0
        )
        inner, kind, label = inside(problem), problem.facts["kind"], problem.facts["label"]
        assert inner.held_out == (seed % 2 == 0) and len(problem.prompt) <= task.prompt_length
        start, *shown = problem.prompt[:-1].split("|")
        assert start == inner.prompt and problem.prompt[-1] == ("!" if kind == "again" else "?")
        good = [once.reply(inner, [text]).success for text in shown]
        kinds[f"{kind}{label}"] += 1
        if kind == "one":
            assert good == [label == "y"]
        elif kind == "two":
            assert good == ([True, False] if label == "a" else [False, True])
        else:
            assert good == [False]
        answer = task.demonstration(problem, [], rng)
        assert task.reply(problem, [answer]).reward == 1 and len(answer) <= task.turn_length
        for wrong in ("", "x", "ya", "nn") if kind != "again" else ("", shown[0]):
            assert task.reply(problem, [wrong]).reward == 0
    assert set(kinds) == {"oney", "onen", "twoa", "twob", "again"} and min(kinds.values()) > 5


def test_the_answer_is_what_comes_last() -> None:
    assert final("4*2=8;3+8=11;11") == "11" and final("11") == "11" and final("3;") == ""
    assert final("<11;16><16>") == final("<16>") == "<16>"


def test_tasks_of_several_turns_are_refused() -> None:
    with pytest.raises(ConfigError, match="guessing has 9 turns"):
        judged(text_task("guessing"))


def test_several_attempts_are_held_out_where_the_problem_inside_is() -> None:
    task, rng = text_task("again-judged-addition"), random.Random(0)
    for held_out in (True, False):
        problems = [task.problem(2, rng, held_out=held_out) for _ in range(40)]
        assert {inside(problem).held_out for problem in problems} == {held_out}
