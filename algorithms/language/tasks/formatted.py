"""Sums with three rewards: the answer, its form and its length."""

import itertools
import random
import re
from collections.abc import Sequence
from typing import ClassVar

from algorithms.language.tasks.base import Problem, Reply, TextTask
from algorithms.language.tasks.grading import integer

_FORM = re.compile(r"(?P<work><[0-9+=;]+>)?<(?P<answer>[^<>]*)>")


class Formatted(TextTask):
    """`level` numbers below 20 to add, answered "<work><sum>" in about as many characters as the
    prompt says: "4+7+5 in 11:" asks for "<11;16><16>", 20 for "<4+7=11;11+5=16><16>".

    Held out are numbers with a length: the same numbers may be asked for in another length in
    training. The reward is 1 for the right sum in that form, as "<sum>" or bare. `format_reward` is
    1 for work (digits and "+=;") and a number, 1/2 for "<number>", else 0. `length_reward` falls
    from 1 at the length asked for to 0 at none or its double, whatever the text says.
    """

    name = "formatted"
    title = "sums with rewards for form and length"
    levels: ClassVar[tuple[int, ...]] = (2, 3, 4, 5)
    trained: ClassVar[tuple[int, ...]] = (2, 4)
    turn_length = 44
    prompt_length = 21
    signals: ClassVar[tuple[str, ...]] = ("format_reward", "length_reward")

    def draw(self, level: int, rng: random.Random) -> Problem:
        numbers = [rng.randint(1, 19) for _ in range(level)]
        target = len(rng.choice(_written(numbers)))
        facts = {"numbers": numbers, "target": target}
        return Problem(f"{'+'.join(map(str, numbers))} in {target}:", level, facts)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        turn, target = turns[-1], problem.facts["target"]
        form, answer = 0.0, integer(turn)
        if match := _FORM.fullmatch(turn):
            answer = integer(match["answer"])
            form = 0.0 if answer is None else 1.0 if match["work"] else 0.5
        right = answer == sum(problem.facts["numbers"])
        length = max(0.0, 1 - abs(len(turn) - target) / target)
        signals = {"format_reward": form, "length_reward": length}
        return Reply(reward=float(right), success=right, signals=signals)

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        """All three rewards in full."""
        target = problem.facts["target"]
        return next(t for t in _written(problem.facts["numbers"]) if len(t) == target)


def _written(numbers: Sequence[int]) -> list[str]:
    """With every step, with the sums so far, with the sum alone as work."""
    sums = list(itertools.accumulate(numbers))
    steps = [f"{a}+{b}={a + b}" for a, b in zip(sums, numbers[1:], strict=False)]
    works = (";".join(steps), ";".join(map(str, sums[1:])), str(sums[-1]))
    return [f"<{work}><{sums[-1]}>" for work in works]
