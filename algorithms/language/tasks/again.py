"""A task of one turn with several attempts: after a wrong answer the same text is shown, whatever
was wrong."""

import random
from collections.abc import Sequence
from typing import ClassVar

from algorithms.language.tasks.base import Problem, Reply, TextTask, made_of
from mbrl.errors import ConfigError

PREFIX = "again-"  # before the name of the task
SHOWN = "try again"
ATTEMPTS = 5


class AgainTask(TextTask):
    """Problems of a task of one turn, up to five answers to each until one is right. What is shown
    after a wrong one says nothing about it. "A Simple 'Try Again' Can Elicit Multi-Turn LLM
    Reasoning", by its authors' code."""

    once: ClassVar[TextTask]
    max_turns = ATTEMPTS

    def problem(self, level: int, rng: random.Random, *, held_out: bool | None = None) -> Problem:
        return self.once.problem(level, rng, held_out=held_out)

    def draw(self, level: int, rng: random.Random) -> Problem:
        return self.once.draw(level, rng)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        own = self.once.reply(problem, [turns[-1]])
        if own.success:
            return Reply(1.0, True, True)
        over = len(turns) >= ATTEMPTS
        return Reply(0.0, over, False, "" if over else SHOWN, f"after {len(turns)}")

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        return self.once.demonstration(problem, [], rng)


def again(once: TextTask) -> AgainTask:
    """The task with several attempts. Raises `ConfigError` for one that has several turns already,
    or texts of any characters."""
    if once.max_turns > 1 or once.open_text:
        raise ConfigError(
            f"{PREFIX}{once.name}: {once.name} has {once.max_turns} turns; several attempts are "
            "for tasks of one turn, such as addition"
        )
    return made_of(
        AgainTask,
        once,
        name=f"{PREFIX}{once.name}",
        title=f"{once.title}, in {ATTEMPTS} attempts",
        prompt_length=max(once.prompt_length, len(SHOWN)),
    )
