"""Sums, differences, products and remainders, answered with the number alone."""

import random
import re
from collections.abc import Sequence
from typing import ClassVar

from algorithms.language.tasks.base import Problem, Reply, TextTask
from algorithms.language.tasks.grading import integer, last

_SUM = re.compile(r"([0-9]{1,9})\+([0-9]{1,9})=")


def _number(digits: int, rng: random.Random) -> int:
    """One that has exactly so many digits; of one digit also 0."""
    return rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)


def _posed(expression: str, level: int, answer: int) -> Problem:
    return Problem(f"{expression}=", level, {"answer": answer})


def _graded(problem: Problem, turns: Sequence[str]) -> Reply:
    return last(integer(turns[-1]) == problem.facts["answer"])


class Addition(TextTask):
    """Two numbers of `level` digits."""

    name = "addition"
    title = "addition"
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 5, 6)
    trained: ClassVar[tuple[int, ...]] = (1, 2, 4)
    turn_length = 8
    prompt_length = 14

    def draw(self, level: int, rng: random.Random) -> Problem:
        a, b = _number(level, rng), _number(level, rng)
        return _posed(f"{a}+{b}", level, a + b)

    def posed(self, text: str) -> Problem | None:
        match = _SUM.fullmatch(text)
        if match is None:
            return None
        a, b = match[1], match[2]
        whole = all(len(n) == 1 or n[0] != "0" for n in (a, b))
        if len(a) != len(b) or len(a) not in self.levels or not whole:
            return None
        return _posed(f"{a}+{b}", len(a), int(a) + int(b))

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        return _graded(problem, turns)

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        return str(problem.facts["answer"])


class Subtraction(TextTask):
    """Two numbers of `level` digits; the difference may be negative."""

    name = "subtraction"
    title = "subtraction"
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 5, 6)
    trained: ClassVar[tuple[int, ...]] = (1, 2, 4)
    turn_length = 8
    prompt_length = 14

    def draw(self, level: int, rng: random.Random) -> Problem:
        a, b = _number(level, rng), _number(level, rng)
        return _posed(f"{a}-{b}", level, a - b)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        return _graded(problem, turns)

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        return str(problem.facts["answer"])


class Multiplication(TextTask):
    """Two numbers that have `level` digits together, as evenly as it goes."""

    name = "multiplication"
    title = "multiplication"
    levels: ClassVar[tuple[int, ...]] = (2, 3, 4, 5, 6)
    trained: ClassVar[tuple[int, ...]] = (2, 4)
    turn_length = 8
    prompt_length = 14

    def draw(self, level: int, rng: random.Random) -> Problem:
        digits = [level // 2, level - level // 2]
        rng.shuffle(digits)
        a, b = (_number(d, rng) for d in digits)
        return _posed(f"{a}*{b}", level, a * b)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        return _graded(problem, turns)

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        return str(problem.facts["answer"])


class Modular(TextTask):
    """A sum, difference or product of two numbers of `level` digits, modulo 3 to 19. Remainders
    are not negative."""

    name = "modular"
    title = "modular arithmetic"
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 5)
    trained: ClassVar[tuple[int, ...]] = (1, 2, 4)
    turn_length = 4
    prompt_length = 18

    def draw(self, level: int, rng: random.Random) -> Problem:
        a, b, modulus = _number(level, rng), _number(level, rng), rng.randint(3, 19)
        sign = rng.choice("+-*")
        value = {"+": a + b, "-": a - b, "*": a * b}[sign]
        return _posed(f"({a}{sign}{b})%{modulus}", level, value % modulus)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        return _graded(problem, turns)

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        return str(problem.facts["answer"])
