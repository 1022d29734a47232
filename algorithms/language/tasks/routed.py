"""A task with steps whose answers say first how they are given: at once, or worked out."""

import random
from collections.abc import Sequence
from typing import ClassVar

from algorithms.language.tasks.base import Problem, Reply, TextTask, made_of
from algorithms.language.tasks.grading import last
from algorithms.language.tasks.judged import final
from mbrl.errors import ConfigError

PREFIX = "routed-"  # before the name of the task
AT_ONCE, WORKED = "a", "w"


class RoutedTask(TextTask):
    """Answers to a task of one turn with steps, after a character for the mode: "a7" is the answer
    at once, "w3+4=7;7" the answer after steps. An answer in another form is wrong, and so is one
    without steps that says it has some, or the other way round. Demonstrations are of either mode,
    drawn evenly."""

    once: ClassVar[TextTask]

    def draw(self, level: int, rng: random.Random) -> Problem:
        return self.once.draw(level, rng)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        mode, text = turns[-1][:1], turns[-1][1:]
        formed = mode == (WORKED if ";" in text else AT_ONCE)
        return last(formed and self.once.reply(problem, [text]).success)

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        shown = self.once.demonstration(problem, [], rng)
        return AT_ONCE + final(shown) if rng.random() < 0.5 else WORKED + shown


def routed(once: TextTask) -> RoutedTask:
    """The task with a mode before its answers. Raises `ConfigError` for one without steps."""
    if once.max_turns > 1 or type(once).steps is TextTask.steps:
        raise ConfigError(
            f"{PREFIX}{once.name}: {once.name} has no steps in one turn that an answer could do "
            "without; take chain"
        )
    return made_of(
        RoutedTask,
        once,
        name=f"{PREFIX}{once.name}",
        title=f"{once.title}, or at once",
        turn_length=once.turn_length + 1,
    )
