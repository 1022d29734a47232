"""Text tasks by name."""

from functools import cache

from algorithms.language.tasks import again as attempts
from algorithms.language.tasks import judged as judgements
from algorithms.language.tasks.arithmetic import Addition, Modular, Multiplication, Subtraction
from algorithms.language.tasks.base import Correction, Plan, Problem, Reply, Step, TextTask
from algorithms.language.tasks.brackets import Brackets
from algorithms.language.tasks.calculator import Calculator
from algorithms.language.tasks.chain import Chain
from algorithms.language.tasks.formatted import Formatted
from algorithms.language.tasks.grid_world import GridWorld
from algorithms.language.tasks.guessing import Guessing
from algorithms.language.tasks.joint import SIGN, JointTask, joint, level_name, parts_of
from algorithms.language.tasks.kernels import Kernels
from algorithms.language.tasks.larger import Larger
from algorithms.language.tasks.planned import Planned
from algorithms.language.tasks.puzzles import Puzzles
from algorithms.language.tasks.retrieval import Retrieval
from algorithms.language.tasks.sorting import Sorting
from algorithms.language.tasks.story import Story
from mbrl.errors import unknown_name

TASKS: dict[str, TextTask] = {
    task.name: task
    for task in (
        Addition(),
        Subtraction(),
        Multiplication(),
        Modular(),
        Chain(),
        Sorting(),
        Brackets(),
        Puzzles(),
        Calculator(),
        Guessing(),
        GridWorld(),
        Planned(),
        Kernels(),
        Retrieval(),
        Formatted(),
        Larger(),
        Story(),
    )
}


def text_task(name: str) -> TextTask:
    """The task of that name; the joint one of several names with a + between them; after "again-"
    one with several attempts; after "judged-" judgements about its answers. Raises `ConfigError`
    with the nearest names if there is none."""
    if SIGN in name:
        return _joint(tuple(text_task(part) for part in name.split(SIGN)))
    if name.startswith(attempts.PREFIX):
        return _again(text_task(name.removeprefix(attempts.PREFIX)))
    if name.startswith(judgements.PREFIX):
        return _judged(text_task(name.removeprefix(judgements.PREFIX)))
    if name not in TASKS:
        raise unknown_name("text task", name, TASKS)
    return TASKS[name]


@cache
def _again(once: TextTask) -> TextTask:
    return attempts.again(once)


@cache
def _judged(once: TextTask) -> TextTask:
    return judgements.judged(once)


@cache
def _joint(parts: tuple[TextTask, ...]) -> JointTask:
    return joint(parts)


__all__ = [
    "TASKS",
    "Correction",
    "JointTask",
    "Plan",
    "Problem",
    "Reply",
    "Step",
    "TextTask",
    "level_name",
    "parts_of",
    "text_task",
]
