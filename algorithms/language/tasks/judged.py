"""Judging answers to a task of one turn: whether one is right, which of two is, and what a right
one is after a wrong one."""

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from algorithms.language.tasks.base import Problem, Reply, TextTask, made_of
from mbrl.errors import ConfigError

PREFIX = "judged-"  # before the name of the task
KINDS = ("one", "two", "again")


class JudgedTask(TextTask):
    """Judgements about problems of a task of one turn and answers to them: "3+4=|8?" asks whether
    the answer is right ("y" or "n"), "3+4=|8|7?" which of two is ("a" or "b"), "3+4=|8!" for a
    right one. Levels are those of the problems. Where a problem is drawn, what is wrong in it is
    the answer to another problem of its level, or a right one with a character changed; a run may
    make problems of its own answers. It is held out where the problem inside is."""

    once: ClassVar[TextTask]

    def problem(self, level: int, rng: random.Random, *, held_out: bool | None = None) -> Problem:
        inner = self.once.problem(level, rng, held_out=held_out)
        right = self.once.demonstration(inner, [], rng)
        wrong = wrong_answer(self.once, inner, right, rng)
        kind = rng.choice(KINDS)
        if kind == "one":
            return one(inner, *((final(right), True) if rng.random() < 0.5 else (wrong, False)))
        if kind == "two":
            return two(inner, final(right), wrong, rng.random() < 0.5)
        return again(inner, wrong)

    def draw(self, level: int, rng: random.Random) -> Problem:
        return self.problem(level, rng)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        if problem.facts["kind"] == "again":
            return dataclasses.replace(self.once.reply(inside(problem), turns), signals={})
        right = turns[-1] == problem.facts["label"]
        return Reply(float(right), True, right)

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        if problem.facts["kind"] == "again":
            return self.once.demonstration(inside(problem), [], rng)
        return str(problem.facts["label"])


def wrong_answer(once: TextTask, inner: Problem, right: str, rng: random.Random) -> str:
    """An answer that is not right: that to another problem of the level, or the end of `right` with
    a character changed."""
    for _ in range(100):
        other = once.draw(inner.level, rng)
        text = final(once.demonstration(other, [], rng))
        if rng.random() < 0.5:
            own = final(right)
            at = rng.randrange(len(own))
            text = own[:at] + rng.choice(own + text) + own[at + 1 :]
        if text and not once.reply(inner, [text]).success:
            return text
    return "?"


def one(inner: Problem, answer: str, right: bool) -> Problem:
    """Whether the answer is right."""
    return posed(inner, f"{inner.prompt}|{answer}?", "one", "y" if right else "n")


def two(inner: Problem, right: str, wrong: str, first: bool) -> Problem:
    """Which answer is right; `first`: the right one stands first."""
    a, b = (right, wrong) if first else (wrong, right)
    return posed(inner, f"{inner.prompt}|{a}|{b}?", "two", "a" if first else "b")


def again(inner: Problem, wrong: str) -> Problem:
    """A right answer after a wrong one."""
    return posed(inner, f"{inner.prompt}|{wrong}!", "again", "")


def posed(inner: Problem, prompt: str, kind: str, label: str) -> Problem:
    """A problem about a problem."""
    known = {"prompt": inner.prompt, "facts": dict(inner.facts), "family": inner.family}
    return Problem(prompt, inner.level, {"kind": kind, "label": label, "inner": known})


def inside(problem: Problem) -> Problem:
    """The problem that the answers are to."""
    inner: Mapping[str, Any] = problem.facts["inner"]
    return Problem(inner["prompt"], problem.level, inner["facts"], inner["family"])


def final(turn: str) -> str:
    """The answer of a turn, without the steps before it: "16" of "4+12=16;16", "<16>" of
    "<4+12=16><16>"."""
    if turn.startswith("<"):
        return turn[turn.rfind("<") :]
    return turn.rpartition(";")[2]


def judged(once: TextTask) -> JudgedTask:
    """Judgements about the task. Raises `ConfigError` for one of several turns, or with texts of
    any characters."""
    if once.max_turns > 1 or once.open_text:
        raise ConfigError(
            f"{PREFIX}{once.name}: {once.name} has {once.max_turns} turns; judgements are about "
            "tasks of one turn, such as addition"
        )
    return made_of(
        JudgedTask,
        once,
        name=f"{PREFIX}{once.name}",
        title=f"judging answers: {once.title}",
        prompt_length=once.prompt_length + 2 * once.turn_length + 3,
    )
