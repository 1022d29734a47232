"""Problems as answers: another problem of the same kind as one that is shown."""

import random
from collections.abc import Sequence
from typing import ClassVar

from algorithms.language.tasks.base import Problem, Reply, TextTask, made_of
from algorithms.language.tasks.grading import last
from algorithms.language.tasks.judged import inside, posed
from mbrl.errors import ConfigError

PREFIX = "varied-"  # before the name of the task


class VariedTask(TextTask):
    """ "3+4=&" asks for another problem like "3+4=". Right is every other one that the task would
    pose on a level that it trains on and that is not held out from training."""

    once: ClassVar[TextTask]

    def problem(self, level: int, rng: random.Random, *, held_out: bool | None = None) -> Problem:
        return like(self.once.problem(level, rng, held_out=held_out))

    def draw(self, level: int, rng: random.Random) -> Problem:
        return self.problem(level, rng)

    def valid(self, problem: Problem, text: str) -> Problem | None:
        """The problem that `text` poses, if it is right."""
        made = self.once.posed(text)
        if made is None or made.level not in self.once.trained or made.held_out:
            return None
        return None if made.prompt == inside(problem).prompt else made

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        return last(self.valid(problem, turns[-1]) is not None)

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        level = problem.level if problem.level in self.once.trained else self.once.trained[0]
        while True:
            text = self.once.problem(level, rng, held_out=False).prompt
            if self.valid(problem, text) is not None:
                return text


def like(inner: Problem) -> Problem:
    """Another problem is wanted."""
    return posed(inner, f"{inner.prompt}&", "vary", "")


def varied(once: TextTask) -> VariedTask:
    """Problems of the task as answers. Raises `ConfigError` for one that does not read its own
    prompts, or of several turns."""
    if once.max_turns > 1 or type(once).posed is TextTask.posed:
        raise ConfigError(
            f"{PREFIX}{once.name}: {once.name} does not read problems of one turn; take addition, "
            "chain or brackets"
        )
    return made_of(
        VariedTask,
        once,
        name=f"{PREFIX}{once.name}",
        title=f"posing problems: {once.title}",
        turn_length=once.prompt_length,
        prompt_length=once.prompt_length + 1,
    )
