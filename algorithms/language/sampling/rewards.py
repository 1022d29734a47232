"""Replies of tasks as calls without a state, which may be anywhere and may be done again."""

from collections.abc import Sequence

from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks import text_task
from algorithms.language.tasks.base import Problem, Reply
from mbrl.distributed.elastic import Elastic


def reply(task: str, problem: Problem, turns: Sequence[str]) -> Reply:
    """What the task of that name says after these turns."""
    return text_task(task).reply(problem, turns)


def replies(task: str, rollouts: Rollouts, where: Elastic | None = None) -> list[Reply]:
    """The last reply to each of the conversations, by `where`, an `Elastic` of `reply` (None: in
    this process)."""
    calls = [(task, p, list(t)) for p, t in zip(rollouts.problems, rollouts.turns, strict=True)]
    return (where or Elastic(reply)).map(calls)
