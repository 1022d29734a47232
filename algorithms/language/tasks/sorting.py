"""Sorting lists."""

import random
from collections.abc import Sequence
from typing import ClassVar

from algorithms.language.tasks.base import Problem, Reply, TextTask
from algorithms.language.tasks.grading import integer, last


class Sorting(TextTask):
    """`level` digits, numbers below 100 or letters, with repetitions, to sort up or down. Items of
    the answer stand one space apart."""

    name = "sorting"
    title = "sorting"
    levels: ClassVar[tuple[int, ...]] = (3, 4, 5, 6, 7, 8)
    trained: ClassVar[tuple[int, ...]] = (3, 4, 6)
    turn_length = 24
    prompt_length = 30

    def draw(self, level: int, rng: random.Random) -> Problem:
        way = rng.choice(("up", "down"))
        kind = rng.choice(("digits", "numbers", "letters"))
        items: list[int] | list[str]
        if kind == "letters":
            items = rng.choices("abcdefghijklmnopqrstuvwxyz", k=level)
        else:
            items = [rng.randrange(10 if kind == "digits" else 100) for _ in range(level)]
        facts = {"items": items, "way": way}
        return Problem(f"{way} {' '.join(map(str, items))}:", level, facts)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        given: list[str | int | None] = list(turns[-1].split(" "))
        if isinstance(problem.facts["items"][0], int):
            given = [integer(str(item)) for item in given]
        return last(given == _sorted(problem))

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        return " ".join(map(str, _sorted(problem)))


def _sorted(problem: Problem) -> list[str | int | None]:
    return sorted(problem.facts["items"], reverse=problem.facts["way"] == "down")
