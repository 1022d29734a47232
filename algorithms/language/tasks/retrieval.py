"""Questions about facts that stand in the prompt."""

import random
from collections.abc import Sequence
from typing import Any, ClassVar

from algorithms.language.tasks.base import Problem, Reply, TextTask
from algorithms.language.tasks.grading import integer, last

_NAMES = ("tom", "ann", "bob", "eve", "sam", "kim", "joe", "liz", "max", "ida")
_THINGS = ("cats", "dogs", "hens", "cows", "pigs", "hats", "cups", "pens", "keys", "maps")
_QUESTIONS = {
    "number": (
        "how many {thing} has {name}?",
        "{name} has how many {thing}?",
        "what is the number of {name}'s {thing}?",
        "count the {thing} of {name}.",
    ),
    "owner": (
        "who has {number} {thing}?",
        "{number} {thing} belong to whom?",
        "name the owner of {number} {thing}.",
        "whose are the {number} {thing}?",
    ),
}


class Retrieval(TextTask):
    """`level` facts such as "tom has 3 cats" and a question after the number or the owner. The
    `family` of a problem is its facts with what is asked, in whatever words."""

    name = "retrieval"
    title = "retrieval from facts in the prompt"
    levels: ClassVar[tuple[int, ...]] = (2, 3, 4, 5)
    trained: ClassVar[tuple[int, ...]] = (2, 4)
    turn_length = 4
    prompt_length = 120

    def draw(self, level: int, rng: random.Random) -> Problem:
        # Few names and things, so that facts share them and one word does not give the answer.
        some = 2 if level < 4 else 3
        names, things = rng.sample(_NAMES, some), rng.sample(_THINGS, some)
        pairs = rng.sample([(name, thing) for name in names for thing in things], level)
        numbers = rng.sample(range(2, 21), level)
        facts = [[name, n, thing] for (name, thing), n in zip(pairs, numbers, strict=True)]
        kind = rng.choice(tuple(_QUESTIONS))
        asked, wording = rng.randrange(level), rng.randrange(len(_QUESTIONS[kind]))
        return _posed(level, {"facts": facts, "kind": kind, "asked": asked}, wording)

    def paraphrases(self, problem: Problem) -> list[Problem]:
        """The problem in all wordings of its question, its own among them."""
        wordings = range(len(_QUESTIONS[problem.facts["kind"]]))
        return [_posed(problem.level, problem.facts, wording) for wording in wordings]

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        answer = _answer(problem)
        if isinstance(answer, int):
            return last(integer(turns[-1]) == answer)
        return last(turns[-1] == answer)

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        return str(_answer(problem))


def _posed(level: int, facts: Any, wording: int) -> Problem:
    name, number, thing = facts["facts"][facts["asked"]]
    question = _QUESTIONS[facts["kind"]][wording].format(name=name, number=number, thing=thing)
    stated = "; ".join(f"{n} has {k} {t}" for n, k, t in facts["facts"])
    family = f"{stated}. {facts['kind']} {facts['asked']}"
    return Problem(f"{stated}. {question}", level, facts, family)


def _answer(problem: Problem) -> str | int:
    name, number, _ = problem.facts["facts"][problem.facts["asked"]]
    result: str | int = number if problem.facts["kind"] == "number" else name
    return result
