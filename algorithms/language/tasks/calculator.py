"""Expressions too hard to do by head, with a calculator that takes a few operations at a time."""

import random
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar

from algorithms.language.tasks.base import Correction, Problem, Reply, TextTask
from algorithms.language.tasks.expressions import (
    Tree,
    operations,
    parse,
    replaced,
    value,
    written,
)
from algorithms.language.tasks.grading import integer

_CALL = re.compile(r"calc\(([^\n]*)\)")
_ANSWER = re.compile(r"answer (-?[0-9]{1,12})")
_AT_ONCE = 2  # operations that a call may have
_LARGEST = 10**9  # results stay below, as do the parts of fractions


class Calculator(TextTask):
    """An expression of `level` operations, such as "37*(48+59)=". A turn is a call "calc(48+59)"
    of at most two operations, answered with the number (a fraction as "7/2") or an error, or it is
    "answer 3959", which ends the problem. Anything else is void and answered "?".

    Signals: `void` 1 for a void turn, `penalty` 1 for a call that was answered with an error. The
    state is what is left of the expression when values that were called stand in it.
    """

    name = "calculator"
    title = "expressions with a calculator"
    levels: ClassVar[tuple[int, ...]] = (2, 3, 4, 5, 6)
    trained: ClassVar[tuple[int, ...]] = (2, 3, 5)
    max_turns = 8
    turn_length = 32
    prompt_length = 36
    signals: ClassVar[tuple[str, ...]] = ("void", "penalty")

    def draw(self, level: int, rng: random.Random) -> Problem:
        tree, answer = _grown(level, rng)
        text = written(tree)
        return Problem(f"{text}=", level, {"expression": text, "answer": answer}, state=text)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        turn, done = turns[-1], len(turns) >= self.max_turns
        signals = {"void": 0.0, "penalty": 0.0}
        if match := _ANSWER.fullmatch(turn):
            right = integer(match[1]) == problem.facts["answer"]
            return Reply(reward=float(right), success=right, signals=signals)
        called = _called(turn)
        if called is None:
            signals["void"] = 1.0
        elif called.startswith("error"):
            signals["penalty"] = 1.0
        shown = "" if done else called or "?"
        state = written(_left(problem, turns))
        return Reply(done=done, observation=shown, state=state, signals=signals)

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        left = _left(problem, turns)
        if isinstance(left, int):
            return f"answer {left}"
        return f"calc({written(_next(left))})"

    def first_error(self, problem: Problem, turns: Sequence[str]) -> Correction | None:
        """A wrong answer, or a turn after which as much is left as before: an error, a void turn, a
        call of what does not stand in the expression."""
        for k, turn in enumerate(turns):
            if match := _ANSWER.fullmatch(turn):
                if integer(match[1]) == problem.facts["answer"]:
                    return None
            elif _left(problem, turns[: k + 1]) != _left(problem, turns[:k]):
                continue
            return Correction(k, 0, self.demonstration(problem, turns[:k], random.Random(0)))
        return None

    def hint(self, problem: Problem, turns: Sequence[str]) -> str:
        """The part to work out next."""
        left = _left(problem, turns)
        return "" if isinstance(left, int) else written(_next(left))

    def diagnosis(self, problem: Problem, turns: Sequence[str]) -> str:
        """The error with what is left of the expression."""
        called = _called(turns[-1])
        if called is not None and not called.startswith("error"):
            return ""
        left = _left(problem, turns)
        return "" if isinstance(left, int) else f"{called or '?'}#{written(left)}"


def _called(turn: str) -> str | None:
    """What the calculator shows, None if `turn` is no call."""
    # Length first: nothing below takes long on a short text.
    if not turn.startswith("calc("):
        return None
    if len(turn) > Calculator.turn_length:
        return "error: too long"
    match = _CALL.fullmatch(turn)
    tree = parse(match[1]) if match else None
    if tree is None:
        return "error: syntax"
    if operations(tree) > _AT_ONCE:
        return "error: too long"
    try:
        result = value(tree)
    except ZeroDivisionError:
        return "error: division by zero"
    return _shown(result)


def _shown(result: Fraction) -> str:
    if max(abs(result.numerator), result.denominator) >= _LARGEST:
        return "error: too large"
    return str(result)


def _left(problem: Problem, turns: Sequence[str]) -> Tree:
    """The expression after what `turns` had calculated."""
    tree = parse(problem.facts["expression"])
    assert tree is not None
    for turn in turns:
        result = integer(_called(turn) or "")
        match = _CALL.fullmatch(turn)
        part = parse(match[1]) if match and result is not None else None
        if part is not None and result is not None and not isinstance(part, int):
            tree = replaced(tree, part, result)
    return tree


def _next(tree: Tree) -> Tree:
    """The first of the largest parts that go into one call."""
    if isinstance(tree, int) or operations(tree) <= _AT_ONCE:
        return tree
    return max((_next(tree[1]), _next(tree[2])), key=operations)


def _grown(size: int, rng: random.Random) -> tuple[Tree, int]:
    """An expression of `size` operations and its value. All parts have whole values, none negative;
    no product is above 99,999."""
    if size == 0:
        leaf = rng.randint(2, 99)
        return leaf, leaf
    first = rng.randrange(size)
    (left, a), (right, b) = _grown(first, rng), _grown(size - 1 - first, rng)
    sign = rng.choice("+-*/")
    if sign == "/" and isinstance(right, int):
        divisors = [d for d in range(2, 100) if a % d == 0 and a > d]
        if divisors:
            b = rng.choice(divisors)
            return ("/", left, b), a // b
    if sign == "-" and a >= b:
        return ("-", left, right), a - b
    if sign == "-":
        return ("-", right, left), b - a
    if sign == "+" or a * b > 99_999:
        return ("+", left, right), a + b
    return ("*", left, right), a * b
