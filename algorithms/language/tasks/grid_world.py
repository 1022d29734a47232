"""A grid to walk through, told in a few characters."""

import random
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from algorithms.language.tasks.base import Correction, Problem, Reply, TextTask

Facts: TypeAlias = Mapping[str, Any]

_MOVES = {"n": (0, 1), "e": (1, 0), "s": (0, -1), "w": (-1, 0)}


class GridWorld(TextTask):
    """A grid of `level` times `level` cells, some walled up. "go 34 at 01es": the goal is at
    x 3, y 4, one is at 0, 1, and can walk east and south. "key 22 go 34 at 01es": first to 22, the
    goal counts only with the key. A turn is n, e, s or w (n raises y), answered with where one is
    then, "02ens", and k at the end once one has the key. A way that is closed leaves one where one
    is, so does a turn that is no move, which is void. Turns are limited to `2 * level + 8`, of
    which the shortest way takes all but 6 at most.

    The state is the place, with the key or without. Signal: `void`.
    """

    name = "grid_world"
    title = "text grid world"
    levels: ClassVar[tuple[int, ...]] = (3, 4, 5, 6)
    trained: ClassVar[tuple[int, ...]] = (3, 5)
    max_turns = 20
    turn_length = 2
    prompt_length = 24
    signals: ClassVar[tuple[str, ...]] = ("void",)

    def draw(self, level: int, rng: random.Random) -> Problem:
        cells = [f"{x}{y}" for x in range(level) for y in range(level)]
        while True:
            start, goal, key, *rest = rng.sample(cells, len(cells))
            walls = sorted(rest[: rng.randint(level * level // 8, level * level // 4)])
            key = key if rng.random() < 0.5 else ""
            facts = {"size": level, "walls": walls, "goal": goal, "key": key, "start": start}
            prompt = f"{f'key {key} ' if key else ''}go {goal} at {_shown(facts, start)}"
            problem = Problem(prompt, level, facts, state=start)
            if level - 1 <= len(_way(problem, start)) <= 2 * level + 2:
                return problem

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        place = _walked(problem, turns)
        signals = {"void": float(turns[-1] not in _MOVES)}
        if _arrived(problem.facts, place):
            return Reply(reward=1.0, success=True, state=place, signals=signals)
        done = len(turns) >= 2 * problem.level + 8
        shown = "" if done else _shown(problem.facts, place)
        return Reply(done=done, observation=shown, state=place, signals=signals)

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        """The first move of a shortest way."""
        return _way(problem, _walked(problem, turns))[0]

    def first_error(self, problem: Problem, turns: Sequence[str]) -> Correction | None:
        """The first move after which the shortest way is no shorter."""
        for k in range(len(turns)):
            before, after = (_walked(problem, turns[:n]) for n in (k, k + 1))
            if len(_way(problem, after)) >= len(_way(problem, before)):
                return Correction(k, 0, self.demonstration(problem, turns[:k], random.Random(0)))
        return None

    def hint(self, problem: Problem, turns: Sequence[str]) -> str:
        """The first half of a shortest way, rounded up."""
        way = _way(problem, _walked(problem, turns))
        return way[: (len(way) + 1) // 2]


def _walked(problem: Problem, turns: Sequence[str]) -> str:
    place = problem.facts["start"]
    for turn in turns:
        place = _moved(problem.facts, place, turn)
    result: str = place
    return result


def _moved(facts: Facts, place: str, move: str) -> str:
    east, north = _MOVES.get(move, (0, 0))
    x, y = int(place[0]) + east, int(place[1]) + north
    cell = f"{x}{y}"
    if not (0 <= x < facts["size"] and 0 <= y < facts["size"]) or cell in facts["walls"]:
        return place
    return f"{cell}k" if place.endswith("k") or cell == facts["key"] else cell


def _shown(facts: Facts, place: str) -> str:
    ways = "".join(move for move in "ensw" if _moved(facts, place, move)[:2] != place[:2])
    return place[:2] + ways + place[2:]


def _arrived(facts: Facts, place: str) -> bool:
    return place[:2] == facts["goal"] and (not facts["key"] or place.endswith("k"))


def _way(problem: Problem, place: str) -> str:
    """The moves of a shortest way to the goal, "" if there is none."""
    ways, queue = {place: ""}, deque([place])
    while queue:
        here = queue.popleft()
        if _arrived(problem.facts, here):
            return ways[here]
        for move in _MOVES:
            there = _moved(problem.facts, here, move)
            if there not in ways:
                ways[there] = ways[here] + move
                queue.append(there)
    return ""
