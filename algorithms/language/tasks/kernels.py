"""Small programs that must be right and fast, written, measured and written again."""

import random
from collections.abc import Sequence
from typing import ClassVar

from algorithms.language.tasks.base import Correction, Problem, Reply, TextTask

_FASTEST = 3.0  # times the reference's speed that count
_SHARE = 0.5  # of a reward for doing the work oneself


class Kernels(TextTask):
    """A program is to make n x out of x: "77x in 76", where the reference, which adds x over and
    over, takes 76 cycles. A turn is a program, read from the left with r = x at first: "d" doubles
    r and "a" adds x to it, a cycle each; a digit k from 2 to 9 calls the reference to add x k
    times, which takes k cycles and one for the call. It is answered with "ok 5", the cycles of a
    program that is right, or "got 11", or "?" if it is none (void). After three turns it is over.

    A right program earns its speed over the reference's, at most 3, plus half of its coverage: the
    share of its cycles that are not the reference's, what a profiler would say. All over 10.5, so
    that a conversation earns 1 at most. It is solved if any of its programs is right and faster
    than the reference. The reward is that of "Dr. Kernel: Reinforcement Learning Done Right for
    Triton Kernel Generations", where a kernel that only calls the library is no kernel.

    Signals: `void`, and `coverage` of the turn's program, 0 for one that is wrong. The state is
    what was written so far.
    """

    name = "kernels"
    title = "programs, right and fast"
    levels: ClassVar[tuple[int, ...]] = (7, 8, 9, 10)
    trained: ClassVar[tuple[int, ...]] = (7, 9)
    max_turns = 3
    turn_length = 20
    prompt_length = 16
    signals: ClassVar[tuple[str, ...]] = ("void", "coverage")

    def draw(self, level: int, rng: random.Random) -> Problem:
        """`level` is how many binary digits n has."""
        n = rng.randrange(2 ** (level - 1), 2**level)
        return Problem(f"{n}x in {n - 1}", level, {"n": n})

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        n, done = problem.facts["n"], len(turns) >= self.max_turns
        shown, reward, coverage = "?", 0.0, 0.0
        result = run(turns[-1])
        if result is not None:
            made, own, called = result
            shown = f"ok {own + called}" if made == n else f"got {made}"
            if made == n:
                coverage = own / (own + called)
                speed = min(_FASTEST, (n - 1) / (own + called))
                most = self.max_turns * (_FASTEST + _SHARE)
                reward = (speed + _SHARE * coverage) / most
        return Reply(
            reward,
            done,
            done and any(faster(turn, n) for turn in turns),
            "" if done else shown,
            "|".join(turns),
            {"void": float(result is None), "coverage": coverage},
        )

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        """n by its binary digits."""
        return "".join("da" if digit == "1" else "d" for digit in f"{problem.facts['n']:b}"[1:])

    def first_error(self, problem: Problem, turns: Sequence[str]) -> Correction | None:
        """The first program that is not right and faster than the reference, where none is."""
        if not turns or any(faster(turn, problem.facts["n"]) for turn in turns):
            return None
        return Correction(0, 0, self.demonstration(problem, [], random.Random(0)))

    def hint(self, problem: Problem, turns: Sequence[str]) -> str:
        """n in binary."""
        return f"{problem.facts['n']:b}"

    def diagnosis(self, problem: Problem, turns: Sequence[str]) -> str:
        """What the program made, and what it is to make, in binary."""
        result, n = run(turns[-1]), problem.facts["n"]
        if result is not None and result[0] == n:
            return ""
        return f"{'?' if result is None else f'got {result[0]:b}'}#want {n:b}"


def run(program: str) -> tuple[int, int, int] | None:
    """How often x is in the result, the cycles of the program's own work, and those of calls; None
    for what is no program."""
    if not program or len(program) > Kernels.turn_length:
        return None
    made, own, called = 1, 0, 0
    for step in program:
        if step == "d":
            made, own = 2 * made, own + 1
        elif step == "a":
            made, own = made + 1, own + 1
        elif step in "23456789":
            made, called = made + int(step), called + int(step) + 1
        else:
            return None
    return made, own, called


def faster(program: str, n: int) -> bool:
    """Whether it is right and takes fewer cycles than the reference."""
    result = run(program)
    return result is not None and result[0] == n and result[1] + result[2] < n - 1
