"""The grid world in text, for one who says which subgoal each move is for."""

import random
import re
from collections.abc import Sequence

from algorithms.language.tasks.base import Correction, Plan, Problem, Reply
from algorithms.language.tasks.grid_world import GridWorld

_NEW = re.compile(r"\+([0-9]{2})([nesw])")
_KEPT = re.compile(r"=([nesw])")
_VOID = "?"


class Planned(GridWorld):
    """As `grid_world`, but a turn first says whether the subgoal changes: "+22n" names the cell
    2, 2 as the new one and walks north, "=n" keeps it and walks north. The first turn names one.
    Anything else is void. Nothing hangs on the subgoal but what is said of it: walking elsewhere is
    allowed. Who shows how it is done names the key, if one is wanted, then the goal.

    State and signal are those of `grid_world`.
    """

    name = "planned"
    title = "text grid world with subgoals"
    turn_length = 4

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        return super().reply(problem, moves(turns))

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        walked = moves(turns)
        move = super().demonstration(problem, walked, rng)
        state = super().reply(problem, walked).state if walked else problem.state
        facts = problem.facts
        wanted = facts["goal"] if not facts["key"] or state.endswith("k") else facts["key"]
        named = [match[1] for match in map(_NEW.fullmatch, turns) if match]
        return f"={move}" if named and named[-1] == wanted else f"+{wanted}{move}"

    def first_error(self, problem: Problem, turns: Sequence[str]) -> Correction | None:
        """That of the moves."""
        error = super().first_error(problem, moves(turns))
        if error is None:
            return None
        shown = self.demonstration(problem, turns[: error.turn], random.Random(0))
        return Correction(error.turn, 0, shown)

    def hint(self, problem: Problem, turns: Sequence[str]) -> str:
        return super().hint(problem, moves(turns))

    def plan(self, turns: Sequence[str]) -> Plan:
        if _NEW.fullmatch(turns[-1]):
            return Plan(True, (0, 1), (1, 3))
        return Plan(len(turns) == 1, (0, 1), (1, 1))


def moves(turns: Sequence[str]) -> list[str]:
    """The move of every turn, "?" of a void one. A subgoal is kept only where one was named."""
    walked, named = [], False
    for turn in turns:
        new, kept = _NEW.fullmatch(turn), _KEPT.fullmatch(turn)
        named = named or new is not None
        walked.append(new[2] if new else kept[1] if kept and named else _VOID)
    return walked
