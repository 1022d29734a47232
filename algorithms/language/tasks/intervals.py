"""The part of a noisy series that is raised, as an interval of places."""

import random
import re
from collections.abc import Sequence
from typing import ClassVar

from algorithms.language.tasks.base import Problem, Reply, TextTask

_INTERVAL = re.compile(r"([0-9]{1,2})-([0-9]{1,2})")
QUIET = ((0, 3), (5, 9))  # least and largest digit of the ground, and of the raised part
NOISY = ((0, 5), (4, 9))
NOISY_FROM = 16  # places of a series


class Intervals(TextTask):
    """A series of `level` digits, of which one run of neighbours, a fifth to a half of it, is
    raised: "raised 0128760123:" is answered with the places of its first and last digit, from 0,
    "3-5". From 16 digits on it is noisy: the ground goes up to 5 and the raised part down to 4. So
    the levels are two domains, of which the one with long series can stand for a new one.

    The reward is the overlap with the right interval: what both have in common over what they
    cover together. Solved is an overlap of half or more.
    """

    name = "intervals"
    title = "the raised part of a series, as an interval"
    levels: ClassVar[tuple[int, ...]] = (8, 12, 16, 20)
    trained: ClassVar[tuple[int, ...]] = (8, 12)
    turn_length = 6
    prompt_length = 28

    def draw(self, level: int, rng: random.Random) -> Problem:
        size = rng.randint(-(-level // 5), level // 2)
        start = rng.randint(0, level - size)
        ground, raised = NOISY if level >= NOISY_FROM else QUIET
        digits = [
            rng.randint(*(raised if start <= i < start + size else ground)) for i in range(level)
        ]
        facts = {"start": start, "stop": start + size}
        return Problem(f"raised {''.join(map(str, digits))}:", level, facts)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        given = _places(problem, turns[-1])
        if given is None:
            return Reply()
        (low, high), start, stop = given, problem.facts["start"], problem.facts["stop"]
        common = max(0, min(high, stop) - max(low, start))
        overlap = common / (high - low + stop - start - common)
        return Reply(overlap, success=overlap >= 0.5)

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        return f"{problem.facts['start']}-{problem.facts['stop'] - 1}"

    def interval(self, problem: Problem, turn: str) -> tuple[float, float] | None:
        given = _places(problem, turn)
        return None if given is None else (given[0] / problem.level, given[1] / problem.level)


def _places(problem: Problem, turn: str) -> tuple[int, int] | None:
    """From which place and up to which, not included."""
    match = _INTERVAL.fullmatch(turn)
    if match is None or not int(match[1]) <= int(match[2]) < problem.level:
        return None
    return int(match[1]), int(match[2]) + 1
