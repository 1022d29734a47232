"""Text tasks by name."""

from functools import cache

from algorithms.language.tasks import again as attempts
from algorithms.language.tasks import hinting as hints
from algorithms.language.tasks import judged as judgements
from algorithms.language.tasks import routed as routes
from algorithms.language.tasks import varied as variations
from algorithms.language.tasks.arithmetic import Addition, Modular, Multiplication, Subtraction
from algorithms.language.tasks.base import Correction, Plan, Problem, Reply, Step, TextTask
from algorithms.language.tasks.brackets import Brackets
from algorithms.language.tasks.calculator import Calculator
from algorithms.language.tasks.chain import Chain
from algorithms.language.tasks.formatted import Formatted
from algorithms.language.tasks.grid_world import GridWorld
from algorithms.language.tasks.guessing import Guessing
from algorithms.language.tasks.intervals import Intervals
from algorithms.language.tasks.joint import SIGN, JointTask, joint, level_name, parts_of
from algorithms.language.tasks.kernels import Kernels
from algorithms.language.tasks.larger import Larger
from algorithms.language.tasks.planned import Planned
from algorithms.language.tasks.puzzles import Puzzles
from algorithms.language.tasks.rating import Rating
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
        Rating(),
        Intervals(),
    )
}


DERIVED = {  # tasks made of another, by what stands before its name
    attempts.PREFIX: attempts.again,
    judgements.PREFIX: judgements.judged,
    routes.PREFIX: routes.routed,
    hints.PREFIX: hints.hinting,
    variations.PREFIX: variations.varied,
}


def text_task(name: str) -> TextTask:
    """The task of that name; the joint one of several names with a + between them; or one that is
    made of another: after "again-" with several attempts, after "judged-" judgements about its
    answers, after "routed-" with a mode before them, after "hinting-" hints for them, after
    "varied-" further problems. Raises `ConfigError` with the nearest names if there is none."""
    if SIGN in name:
        return _joint(tuple(text_task(part) for part in name.split(SIGN)))
    for prefix in DERIVED:
        if name.startswith(prefix):
            return _derived(prefix, text_task(name.removeprefix(prefix)))
    if name not in TASKS:
        raise unknown_name("text task", name, TASKS)
    return TASKS[name]


@cache
def _derived(prefix: str, once: TextTask) -> TextTask:
    return DERIVED[prefix](once)


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
