"""Small logic puzzles."""

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from algorithms.language.tasks.base import Problem, Reply, TextTask
from algorithms.language.tasks.grading import last


class Puzzles(TextTask):
    """Puzzles about `level` letters. Every answer that fits all clues is right, and there is one:

    - "order c<a a<b:" the letters in an order in which c is before a and a before b: "cab";
    - "liars a:b- b:c+ c:b+ c+:" who tells the truth (+) or lies (-), in the order in which they
      speak, where "a:b-" is a saying that b lies, and "c+" that c does tell the truth: "-++";
    - "color a-b b-c c2:" a color 1, 2 or 3 for every letter, in the order of the alphabet, where
      linked letters differ and c has 2: "212".
    """

    name = "puzzles"
    title = "logic puzzles"
    levels: ClassVar[tuple[int, ...]] = (3, 4, 5, 6)
    trained: ClassVar[tuple[int, ...]] = (3, 5)
    turn_length = 8
    prompt_length = 40

    def draw(self, level: int, rng: random.Random) -> Problem:
        kind = rng.choice(("order", "liars", "color"))
        names = "".join(sorted(rng.sample("abcdefgh", level)))
        clues = _liars(names, rng) if kind == "liars" else _links(kind, names, rng)
        facts = {"kind": kind, "names": names, "clues": clues}
        return Problem(f"{kind} {' '.join(clues)}:", level, facts)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        facts, answer = problem.facts, turns[-1]
        return last(fits(facts["kind"], facts["names"], facts["clues"], answer))

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        kind, names, clues = (problem.facts[k] for k in ("kind", "names", "clues"))
        return next(a for a in _answers(kind, names) if fits(kind, names, clues, a))


def fits(kind: str, names: str, clues: Sequence[str], answer: str) -> bool:
    """Whether `answer` has the form that the kind of puzzle asks for and agrees with all clues."""
    if len(answer) != len(names):
        return False
    if kind == "order":
        place = {name: answer.find(name) for name in names}
        return min(place.values()) >= 0 and all(place[c[0]] < place[c[2]] for c in clues)
    given = dict(zip(names, answer, strict=True))
    if kind == "color":
        return set(answer) <= set("123") and all(
            given[c[0]] == c[1] if len(c) == 2 else given[c[0]] != given[c[2]] for c in clues
        )
    return set(answer) <= set("+-") and all(
        given[c[0]] == c[1] if len(c) == 2 else (given[c[0]] == "+") == (given[c[2]] == c[3])
        for c in clues
    )


def _answers(kind: str, names: str) -> Iterator[str]:
    if kind == "order":
        return map("".join, itertools.permutations(names))
    return map("".join, itertools.product("123" if kind == "color" else "+-", repeat=len(names)))


def _links(kind: str, names: str, rng: random.Random) -> list[str]:
    """Clues between two letters: all are linked to some earlier one, and up to two links more. Of
    colors one is told: otherwise three letters could always have "123"."""
    hidden = rng.sample(names, len(names))
    rank = {name: i if kind == "order" else i % 3 for i, name in enumerate(hidden)}
    pairs = []
    for i in range(1, len(hidden)):
        earlier = [name for name in hidden[:i] if rank[name] != rank[hidden[i]]]
        pairs.append((rng.choice(earlier), hidden[i]))
    free = [
        (a, b)
        for a, b in itertools.combinations(hidden, 2)
        if rank[a] != rank[b] and (a, b) not in pairs
    ]
    pairs += rng.sample(free, min(rng.randint(0, 2), len(free)))
    rng.shuffle(pairs)
    if kind == "order":
        return [f"{a}<{b}" for a, b in pairs]
    known = rng.choice(names)
    return [*("-".join(sorted(pair)) for pair in pairs), f"{known}{rank[known] + 1}"]


def _liars(names: str, rng: random.Random) -> list[str]:
    """What everybody says of another one, and half of the time what one of them is: without it
    whoever fits, so does the opposite."""
    honest = {name: rng.random() < 0.5 for name in names}
    clues = []
    for name in names:
        other = rng.choice([n for n in names if n != name])
        clues.append(f"{name}:{other}{'+' if honest[name] == honest[other] else '-'}")
    if rng.random() < 0.5:
        known = rng.choice(names)
        clues.append(f"{known}{'+' if honest[known] else '-'}")
    return clues
