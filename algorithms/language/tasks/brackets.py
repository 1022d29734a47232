"""Repair of bracket strings."""

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

from algorithms.language.tasks.base import Correction, Problem, Reply, TextTask
from algorithms.language.tasks.grading import last

MISSING = 3  # brackets of a problem, at most
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_OPENING = {closing: opening for opening, closing in _CLOSING.items()}


def balanced(text: str) -> bool:
    """Whether `text` is brackets only, each closed by its own kind in the right order."""
    opened: list[str] = []
    for c in text:
        if c in _CLOSING:
            opened.append(_CLOSING[c])
        elif not opened or opened.pop() != c:
            return False
    return not opened


@lru_cache(maxsize=4096)
def repaired(text: str) -> str:
    """A shortest balanced string that `text` is left of when some characters are taken out."""
    if not text:
        return ""
    first, rest = text[0], text[1:]
    if first in _OPENING:
        return _OPENING[first] + first + repaired(rest)
    closing = _CLOSING[first]
    # `first` is closed at once by a new bracket, or by any of its kind that follows.
    best = first + closing + repaired(rest)
    for i, c in enumerate(rest):
        if c == closing:
            tried = first + repaired(rest[:i]) + closing + repaired(rest[i + 1 :])
            best = min(best, tried, key=len)
    return best


@lru_cache(maxsize=65_536)
def completed(opened: str, rest: str, left: int) -> str | None:
    """`left` characters that close the brackets `opened` and hold those of `rest` in their order,
    the first such text in the order of "([{)]}"; None if there is none."""
    if left < max(len(opened), len(rest)):
        return None
    if left == 0:
        return ""
    for c in "([{)]}":
        if c in _CLOSING:
            inside = opened + c
        elif opened.endswith(_OPENING[c]):
            inside = opened[:-1]
        else:
            continue
        # It is never worse to take the next of `rest` as soon as it is said.
        tail = completed(inside, rest[1:] if rest.startswith(c) else rest, left - 1)
        if tail is not None:
            return c + tail
    return None


class Brackets(TextTask):
    """`level` brackets from which some are missing. An answer is right if it is balanced, has the
    given brackets in their order (others may stand between them), and none is shorter."""

    name = "brackets"
    title = "bracket repair"
    levels: ClassVar[tuple[int, ...]] = (3, 4, 5, 6, 8, 10)
    trained: ClassVar[tuple[int, ...]] = (3, 4, 6)
    turn_length = 20
    prompt_length = 15

    def draw(self, level: int, rng: random.Random) -> Problem:
        while True:
            missing = 2 if level % 2 == 0 else rng.choice((1, 3))
            text = list(_balanced((level + missing) // 2, rng))
            for _ in range(missing):
                del text[rng.randrange(len(text))]
            broken = "".join(text)
            if not balanced(broken):
                break
        return _posed(broken)

    def posed(self, text: str) -> Problem | None:
        broken = text.removeprefix("fix ").removesuffix(":")
        if text != f"fix {broken}:" or len(broken) not in self.levels:
            return None
        if not set(broken) <= set("()[]{}") or balanced(broken):
            return None
        made = _posed(broken)
        return made if made.facts["length"] - made.level <= MISSING else None

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        turn, broken = turns[-1], problem.facts["broken"]
        if len(turn) != problem.facts["length"] or not balanced(turn):
            return last(False)
        rest = iter(turn)
        return last(all(c in rest for c in broken))

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        return repaired(problem.facts["broken"])

    def first_error(self, problem: Problem, turns: Sequence[str]) -> Correction | None:
        """The first character after which no right answer is left, or the end if it comes too
        early; what follows in the right answer that comes first in the order of "([{)]}" is the
        correction."""
        turn, length = turns[-1], problem.facts["length"]
        opened, rest = "", problem.facts["broken"]
        for i in range(length + 1):
            tail = completed(opened, rest, length - i)
            assert tail is not None
            after = _said(opened, rest, turn[i : i + 1])
            if not tail:
                return None if len(turn) == length else Correction(len(turns) - 1, i, "")
            if after is None or completed(*after, length - i - 1) is None:
                return Correction(len(turns) - 1, i, tail[0], ends=i + 1 == length)
            opened, rest = after
        return None

    def hint(self, problem: Problem, turns: Sequence[str]) -> str:
        """The first half of an answer, rounded down."""
        shown = repaired(problem.facts["broken"])
        return shown[: len(shown) // 2]


def _posed(broken: str) -> Problem:
    facts = {"broken": broken, "length": len(repaired(broken))}
    return Problem(f"fix {broken}:", len(broken), facts)


def _said(opened: str, rest: str, c: str) -> tuple[str, str] | None:
    """What is open and what is to come after the character `c`; None where it cannot stand."""
    if c in _CLOSING:
        opened += c
    elif c and opened and _OPENING.get(c) == opened[-1]:
        opened = opened[:-1]
    else:
        return None
    return opened, rest[1:] if rest.startswith(c) else rest


def _balanced(pairs: int, rng: random.Random) -> str:
    if pairs == 0:
        return ""
    inside = rng.randrange(pairs)
    opening = rng.choice("([{")
    after = _balanced(pairs - 1 - inside, rng)
    return opening + _balanced(inside, rng) + _CLOSING[opening] + after
