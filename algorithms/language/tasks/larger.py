"""The larger of two numbers, after two lines that show how it is asked and answered."""

import random
from collections.abc import Sequence
from typing import ClassVar

from algorithms.language.tasks.base import Problem, Reply, TextTask
from algorithms.language.tasks.grading import integer, last

SHOWN = ((38, 97), (41, 17))  # once the second number is larger, once the first


class Larger(TextTask):
    """Two different numbers of `level` digits. A model that only goes on with a text (`opening`
    "bare") can answer, since the prompt shows how."""

    name = "larger"
    title = "the larger number, after two examples"
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3)
    trained: ClassVar[tuple[int, ...]] = (2,)
    turn_length = 7
    prompt_length = 44

    def draw(self, level: int, rng: random.Random) -> Problem:
        a, b = rng.sample(range(10 ** (level - 1), 10**level), 2)
        shown = "".join(f"max({x},{y})={max(x, y)}\n" for x, y in SHOWN)
        pair = f"{min(a, b)} {max(a, b)}"  # held out in both orders or in none
        return Problem(f"{shown}max({a},{b})=", level, {"answer": max(a, b)}, family=pair)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        return last(integer(turns[-1]) == problem.facts["answer"])

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        return str(problem.facts["answer"])
