"""Sums and products of several numbers, worked out in steps before the answer."""

import random
import re
from collections.abc import Sequence
from typing import ClassVar

from algorithms.language.tasks.base import Correction, Problem, Reply, Step, TextTask
from algorithms.language.tasks.grading import integer, last

_POSED = re.compile(r"([1-9](?:[+*][1-9]){1,9})=")
_STEP = re.compile(r"([0-9]{1,9})([+*])([0-9]{1,9})=([0-9]{1,9})")


class _Expression:
    """What is left of an expression while steps replace parts of it by what they say."""

    def __init__(self, text: str) -> None:
        self.numbers = [int(n) for n in re.split(r"[+*]", text)]
        self.signs = re.findall(r"[+*]", text)

    def place(self, a: int, sign: str, b: int) -> int | None:
        """Where `a sign b` can be worked out now: a sum only where no product takes its numbers."""
        for i, own in enumerate(self.signs):
            if (self.numbers[i], own, self.numbers[i + 1]) != (a, sign, b):
                continue
            if sign == "*" or "*" not in self.signs[max(i - 1, 0) : i + 2]:
                return i
        return None

    def replace(self, i: int, value: int) -> None:
        self.numbers[i : i + 2] = [value]
        del self.signs[i]

    def step(self) -> tuple[int, str, int]:
        """The place, the text "4*2" and the result of what to work out next."""
        i = self.signs.index("*") if "*" in self.signs else 0
        a, sign, b = self.numbers[i], self.signs[i], self.numbers[i + 1]
        return i, f"{a}{sign}{b}", a * b if sign == "*" else a + b

    def value(self) -> int:
        total, product = 0, self.numbers[0]
        for sign, number in zip(self.signs, self.numbers[1:], strict=True):
            if sign == "*":
                product *= number
            else:
                total, product = total + product, number
        return total + product


def _posed(expression: str, level: int) -> Problem:
    known = {"expression": expression, "answer": _Expression(expression).value()}
    return Problem(f"{expression}=", level, known)


class Chain(TextTask):
    """`level` sums and products of numbers 1 to 9, products never next to each other. The turn
    "4*2=8;3+8=11;11" works out 3+4*2; the answer alone counts for the reward, but what stands
    before it must have the form of steps.

    A step is right if its sum or product stands in the expression, as earlier steps left it, and
    comes to what it says. A wrong result is carried on; a step that is not in the expression
    changes nothing. The answer is the last step, right if it is the value of what is left.
    """

    name = "chain"
    title = "chain of sums and products in steps"
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 5)
    trained: ClassVar[tuple[int, ...]] = (1, 2, 4)
    turn_length = 48
    prompt_length = 12

    def draw(self, level: int, rng: random.Random) -> Problem:
        text, sign = str(rng.randint(1, 9)), "+"
        for _ in range(level):
            sign = rng.choice("+*") if sign == "+" else "+"
            text += f"{sign}{rng.randint(1, 9)}"
        return _posed(text, level)

    def posed(self, text: str) -> Problem | None:
        match = _POSED.fullmatch(text)
        if match is None:
            return None
        signs = re.sub(r"[0-9]", "", match[1])
        return (
            _posed(match[1], len(signs))
            if "**" not in signs and len(signs) in self.levels
            else None
        )

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        *steps, answer = turns[-1].split(";")
        formed = all(_STEP.fullmatch(step) for step in steps)
        return last(formed and integer(answer) == problem.facts["answer"])

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        left, turn = _Expression(problem.facts["expression"]), ""
        while left.signs:
            i, text, value = left.step()
            turn += f"{text}={value};"
            left.replace(i, value)
        return turn + str(left.numbers[0])

    def steps(self, problem: Problem, turns: Sequence[str]) -> list[Step]:
        """A step includes its ";". What is empty after the last ";" is none."""
        left, end, steps = _Expression(problem.facts["expression"]), 0, []
        pieces = turns[-1].split(";")
        for n, piece in enumerate(pieces, start=1):
            right, final = False, n == len(pieces)
            if final and not piece:
                break
            if match := _STEP.fullmatch(piece):
                a, sign, b, value = int(match[1]), match[2], int(match[3]), int(match[4])
                if (i := left.place(a, sign, b)) is not None:
                    right = value == (a * b if sign == "*" else a + b)
                    left.replace(i, value)
            elif final:
                right = integer(piece) == left.value()
            end += len(piece) + (not final)
            steps.append(Step(end, right))
        return steps

    def first_error(self, problem: Problem, turns: Sequence[str]) -> Correction | None:
        """A right step that nothing follows lacks the next one."""
        left, start, parting = self._left(problem, turns)
        if start is None:
            return None
        if not left.signs:
            return Correction(len(turns) - 1, start, f"{parting}{left.numbers[0]}")
        _, text, value = left.step()
        return Correction(len(turns) - 1, start, f"{parting}{text}={value};", ends=False)

    def hint(self, problem: Problem, turns: Sequence[str]) -> str:
        """The step that comes after the right ones, without its result where that is the answer."""
        left, start, _ = self._left(problem, turns or [""])
        if start is None or not left.signs:
            return ""
        _, text, value = left.step()
        return text if value == problem.facts["answer"] else f"{text}={value}"

    def _left(self, problem: Problem, turns: Sequence[str]) -> tuple[_Expression, int | None, str]:
        """What the right steps of the last turn leave of the expression, the character after them
        (None: all is right and there), and the ";" that is lacking there."""
        left, start, parting = _Expression(problem.facts["expression"]), 0, ""
        pieces = turns[-1].split(";")
        for step, piece in zip(self.steps(problem, turns), pieces, strict=False):
            if not step.right:
                return left, start, parting
            match = _STEP.fullmatch(piece)
            if match is None:
                return left, None, ""  # the answer
            i = left.place(int(match[1]), match[2], int(match[3]))
            assert i is not None
            left.replace(i, int(match[4]))
            start = step.end
        return left, start, ";" if turns[-1] and not turns[-1].endswith(";") else ""
