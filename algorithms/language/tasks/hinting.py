"""Hints as a task: what would help with a problem of another task, after a wrong answer and a right
one."""

import random
import re
from collections.abc import Sequence
from typing import ClassVar

from algorithms.language.tasks.base import Problem, Reply, TextTask, made_of
from algorithms.language.tasks.grading import integer, last
from algorithms.language.tasks.judged import final, inside, posed, wrong_answer
from mbrl.errors import ConfigError

PREFIX = "hinting-"  # before the name of the task


class HintingTask(TextTask):
    """ "3+4*2=|14|4*2=8;3+8=11;11~" asks for a hint to "3+4*2=", to which 14 is wrong; what stands
    third is a right answer. Right is the task's own hint; there may be others that help as well."""

    once: ClassVar[TextTask]

    def problem(self, level: int, rng: random.Random, *, held_out: bool | None = None) -> Problem:
        inner = self.once.problem(level, rng, held_out=held_out)
        shown = self.once.demonstration(inner, [], rng)
        return asked(inner, wrong_answer(self.once, inner, shown, rng), shown)

    def draw(self, level: int, rng: random.Random) -> Problem:
        return self.problem(level, rng)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        return last(turns[-1] == self.once.hint(inside(problem), []) != "")

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        return self.once.hint(inside(problem), [])

    def hint(self, problem: Problem, turns: Sequence[str]) -> str:
        return ""


def asked(inner: Problem, wrong: str, right: str) -> Problem:
    """A hint is wanted for a problem, after a wrong and a right answer to it."""
    return posed(inner, f"{inner.prompt}|{wrong}|{right}~", "hint", "")


def leaks(hint: str, right: str) -> bool:
    """Whether the hint holds the answer that `right` ends with: as a number of its own, where it is
    one, else anywhere."""
    answer = final(right).strip("<>")
    if integer(answer) is None:
        return answer in hint
    return re.search(f"(?<![0-9]){answer}(?![0-9])", hint) is not None


def hinting(once: TextTask) -> HintingTask:
    """Hints for the task. Raises `ConfigError` for one without hints, or of several turns."""
    if once.max_turns > 1 or type(once).hint is TextTask.hint:
        raise ConfigError(
            f"{PREFIX}{once.name}: {once.name} has no hints for answers of one turn; take chain or "
            "brackets"
        )
    return made_of(
        HintingTask,
        once,
        name=f"{PREFIX}{once.name}",
        title=f"hints: {once.title}",
        prompt_length=once.prompt_length + 2 * once.turn_length + 3,
    )
