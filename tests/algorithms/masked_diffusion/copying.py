"""The smallest task of one turn: say the letter that is shown."""

import random
from collections.abc import Sequence
from typing import ClassVar

from algorithms.language.tasks.base import Problem, Reply, TextTask


class Copying(TextTask):
    name = "copying"
    title = "copying"
    levels: ClassVar[tuple[int, ...]] = (1,)
    trained: ClassVar[tuple[int, ...]] = (1,)
    turn_length = 3
    prompt_length = 1
    splits = False

    def draw(self, level: int, rng: random.Random) -> Problem:
        return Problem(rng.choice("ab"), level)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        right = turns[-1] == problem.prompt
        return Reply(float(right), True, right)

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        return problem.prompt
