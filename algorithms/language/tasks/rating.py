"""A row of digits to rate, and how far the rating is from the right one."""

import math
import random
from collections.abc import Sequence
from typing import ClassVar

from algorithms.language.tasks.base import Problem, Reply, TextTask
from algorithms.language.tasks.grading import integer

WIDTH = 0.3  # of the reward, in scores
HIGH = 5  # a digit from here on counts


class Rating(TextTask):
    """A row of `level` digits, rated 1 to 5 by how many are 5 or more: "rate 0719:" has 1 + 4 n / 4
    for n of 4, rounded, ties to the even score. The answer is the score alone.

    The reward is e^(-|answer - score| / 0.3), that of "Q-Hawkeye: Reliable Visual Policy
    Optimization for Image Quality Assessment", arXiv 2601.22920; solved is the right score alone.
    """

    name = "rating"
    title = "a score from 1 to 5 for a row of digits"
    levels: ClassVar[tuple[int, ...]] = (4, 6, 8, 12)
    trained: ClassVar[tuple[int, ...]] = (4, 8)
    turn_length = 3
    prompt_length = 18
    scores: ClassVar[tuple[float, float] | None] = (1, 5)

    def draw(self, level: int, rng: random.Random) -> Problem:
        digits = [rng.randrange(10) for _ in range(level)]
        score = round(1 + 4 * sum(d >= HIGH for d in digits) / level)
        return Problem(f"rate {''.join(map(str, digits))}:", level, {"score": score})

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        answer, score = integer(turns[-1]), problem.facts["score"]
        reward = 0.0 if answer is None else math.exp(-abs(answer - score) / WIDTH)
        return Reply(reward, success=answer == score)

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        return str(problem.facts["score"])
