"""Guessing a number from "higher" and "lower"."""

import random
from collections.abc import Sequence
from typing import ClassVar

from algorithms.language.tasks.base import Problem, Reply, TextTask
from algorithms.language.tasks.grading import integer


class Guessing(TextTask):
    """One of `level` numbers below 200 is to be found: "guess 23-54 in 7". A turn is a number,
    answered with "higher" if the one sought is higher, or "lower"; anything else is void and
    answered "?". Turns are limited to one more than halving the range needs.

    The state is the range that is left, whatever the turn. Signal: `void`.
    """

    name = "guessing"
    title = "number guessing"
    levels: ClassVar[tuple[int, ...]] = (8, 16, 32, 64, 128)
    trained: ClassVar[tuple[int, ...]] = (8, 16, 64)
    max_turns = 9
    turn_length = 4
    prompt_length = 18
    signals: ClassVar[tuple[str, ...]] = ("void",)

    def draw(self, level: int, rng: random.Random) -> Problem:
        low = rng.randint(1, 200 - level)
        high, limit = low + level - 1, level.bit_length() + 1
        facts = {"low": low, "high": high, "sought": rng.randint(low, high), "limit": limit}
        return Problem(f"guess {low}-{high} in {limit}", level, facts, state=f"{low}-{high}")

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        guess, sought = integer(turns[-1]), problem.facts["sought"]
        signals = {"void": float(guess is None)}
        if guess == sought:
            return Reply(reward=1.0, success=True, signals=signals)
        low, high = _left(problem, turns)
        done = len(turns) >= problem.facts["limit"]
        hint = "?" if guess is None else "higher" if guess < sought else "lower"
        shown = "" if done else hint
        return Reply(done=done, observation=shown, state=f"{low}-{high}", signals=signals)

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        """Halves what is left."""
        return str(sum(_left(problem, turns)) // 2)


def _left(problem: Problem, turns: Sequence[str]) -> tuple[int, int]:
    """The lowest and the highest number that the answers to `turns` allow."""
    low, high, sought = (problem.facts[k] for k in ("low", "high", "sought"))
    for guess in map(integer, turns):
        if guess is not None and guess < sought:
            low = max(low, guess + 1)
        elif guess is not None:
            high = min(high, guess - 1)
    return low, high
