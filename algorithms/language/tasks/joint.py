"""Several tasks as one, whose problems each belong to one of them: "addition+sorting"."""

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from algorithms.language.tasks.base import Correction, Problem, Reply, Step, TextTask
from mbrl.errors import ConfigError

SIGN = "+"  # between the names of parts
APART = 1000  # between the levels of one part and of the next
# Methods that a task may leave as they are: the whole has them where all parts do.
OPTIONAL = ("steps", "first_error", "hint", "diagnosis", "paraphrases")


class JointTask(TextTask):
    """Problems of several tasks, its `parts`. `Problem.task` names the part that a problem is of,
    and level `l` of part number k, from 0, is here 1000 k + l. A turn may be as long as that of the
    part with the longest ones, conversations as long as their own part has them."""

    parts: ClassVar[tuple[TextTask, ...]]

    def part(self, problem: Problem) -> TextTask:
        """The task that the problem is of."""
        return self.parts[problem.level // APART]

    def problem(self, level: int, rng: random.Random, *, held_out: bool | None = None) -> Problem:
        if level not in self.levels:
            return super().problem(level, rng, held_out=held_out)  # which says so
        part = self.parts[level // APART]
        own = part.problem(level % APART, rng, held_out=held_out)
        return dataclasses.replace(own, level=level, task=part.name)

    def draw(self, level: int, rng: random.Random) -> Problem:
        return self.problem(level, rng)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        return self.part(problem).reply(alone(problem), turns)

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        return self.part(problem).demonstration(alone(problem), turns, rng)


def alone(problem: Problem) -> Problem:
    """The problem as its own task knows it."""
    return dataclasses.replace(problem, level=problem.level % APART)


def joint(parts: Sequence[TextTask]) -> JointTask:
    """The tasks `parts` as one. Raises `ConfigError` for fewer than two, for one that is there
    twice, and for one whose texts have characters that others do not."""
    names = [part.name for part in parts]
    if len(set(names)) < max(2, len(names)):
        raise ConfigError(f"a joint task of {names}: give two or more tasks, each once")
    if odd := [part.name for part in parts if part.open_text]:
        raise ConfigError(
            f"{' and '.join(odd)} has texts of any characters, and is no part of a joint task"
        )
    has = [
        name
        for name in OPTIONAL
        if all(getattr(type(part), name) is not getattr(TextTask, name) for part in parts)
    ]
    values: dict[str, Any] = {
        "__doc__": JointTask.__doc__,
        "__module__": __name__,
        "parts": tuple(parts),
        "name": SIGN.join(names),
        "title": ", ".join(part.title for part in parts),
        "levels": tuple(APART * k + x for k, part in enumerate(parts) for x in part.levels),
        "trained": tuple(APART * k + x for k, part in enumerate(parts) for x in part.trained),
        "max_turns": max(part.max_turns for part in parts),
        "turn_length": max(part.turn_length for part in parts),
        "prompt_length": max(part.prompt_length for part in parts),
        "signals": tuple(n for n in parts[0].signals if all(n in part.signals for part in parts)),
        "splits": all(part.splits for part in parts),
    }
    forwarded = {name: FORWARDED[name] for name in has}
    kind: type[JointTask] = type("JointTask", (JointTask,), values | forwarded)
    return kind()


def _steps(self: JointTask, problem: Problem, turns: Sequence[str]) -> list[Step]:
    return self.part(problem).steps(alone(problem), turns)


def _first_error(self: JointTask, problem: Problem, turns: Sequence[str]) -> Correction | None:
    return self.part(problem).first_error(alone(problem), turns)


def _hint(self: JointTask, problem: Problem, turns: Sequence[str]) -> str:
    return self.part(problem).hint(alone(problem), turns)


def _diagnosis(self: JointTask, problem: Problem, turns: Sequence[str]) -> str:
    return self.part(problem).diagnosis(alone(problem), turns)


def _paraphrases(self: JointTask, problem: Problem) -> list[Problem]:
    own = self.part(problem).paraphrases(alone(problem))
    return [dataclasses.replace(p, level=problem.level, task=problem.task) for p in own]


FORWARDED: dict[str, Callable[..., Any]] = {
    "steps": _steps,
    "first_error": _first_error,
    "hint": _hint,
    "diagnosis": _diagnosis,
    "paraphrases": _paraphrases,
}


def parts_of(task: TextTask) -> tuple[TextTask, ...]:
    """The tasks that `task` is made of: itself, where it is one."""
    return task.parts if isinstance(task, JointTask) else (task,)


def level_name(task: TextTask, level: int) -> str:
    """A level as people read it: "sorting 3" in a joint task, else "3"."""
    if not isinstance(task, JointTask):
        return str(level)
    return f"{task.parts[level // APART].name} {level % APART}"
