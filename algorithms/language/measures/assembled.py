"""Rounds put together from groups of the policy's own answers and of answers that had help."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from algorithms.language.measures.base import require_task
from algorithms.language.measures.locate import whole
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.sampling.prefixes import TEACHER
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks.base import Problem, TextTask
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.trainer import with_fields


@dataclass
class Assembled:
    """Conversations of a round, group by group, and numbers of each by the names of the signals
    that they become, 0 where they are not given. `aided`: 1 for what the policy did not do by
    itself, so that no success with help counts as its own."""

    agent: Any
    rows: list[Conversation] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)
    numbers: list[dict[str, float]] = field(default_factory=list)

    def add(
        self, rows: Sequence[Conversation], numbers: Sequence[dict[str, float]] | None = None
    ) -> None:
        """A group, compared among itself alone, with the numbers of each row."""
        first = self.owner[-1] + 1 if self.owner else 0
        self.rows += rows
        self.owner += [first] * len(rows)
        self.numbers += numbers or [{} for _ in rows]

    def rollouts(self, *names: str) -> Rollouts:
        """As tensors, with the signals `names`, `aided` and `teacher`: 1 at tokens that a teacher
        said."""
        rollouts: Rollouts = self.agent.collector.to_rollouts(self.rows, self.owner)
        signals = {
            name: whole(rollouts, [float(n.get(name, 0.0)) for n in self.numbers]).to(
                rollouts.data.reward
            )
            for name in ("aided", *names)
        }
        return with_fields(rollouts, "signals", **signals, teacher=taught(rollouts, self.rows))


def taught(rollouts: Rollouts, rows: Sequence[Conversation]) -> Tensor:
    """[B, T]: 1 at the tokens that a teacher said, else 0."""
    where = torch.zeros(rollouts.data.mask.shape)
    for i, row in enumerate(rows):
        for start, stop, who in row.origins:
            where[i, start - 1 : stop - 1] = float(who == TEACHER)
    return where.to(rollouts.data.reward)


def own_groups(
    agent: Any, problems: Sequence[Problem], group: int | None = None
) -> list[list[Conversation]]:
    """What the policy says by itself about each problem, `group` times (None: as configured)."""
    return answers(agent, agent.collector.open(problems), group)


def answers(
    agent: Any, starts: Sequence[Conversation], group: int | None = None
) -> list[list[Conversation]]:
    """`group` ends of each of `starts`, which stay as they are."""
    if not starts:
        return []
    count = agent.config.group if group is None else group
    rows = agent.collector.copies(starts, [count] * len(starts))
    rows, _ = agent.collector.finish(rows, [i // count for i in range(len(rows))])
    return [rows[i : i + count] for i in range(0, len(rows), count)]


def right(row: Conversation) -> bool:
    return row.replies[-1].success


def rate(rows: Sequence[Conversation]) -> float:
    """The share that is right."""
    return sum(map(right, rows)) / len(rows)


def drawn(agent: Any, below: int) -> int:
    """One of 0 to `below` - 1, evenly."""
    return int(torch.randint(below, (), generator=agent.generator, device=agent.device))


def uniform(agent: Any) -> float:
    """A number in [0, 1)."""
    return float(torch.rand((), generator=agent.generator, device=agent.device))


def corrects(task: TextTask) -> bool:
    return type(task).first_error is not TextTask.first_error


def hints(task: TextTask) -> bool:
    return type(task).hint is not TextTask.hint


def diagnoses(task: TextTask) -> bool:
    return type(task).diagnosis is not TextTask.diagnosis


def check_help(objective: Recipe, config: Any, able: Any, what: str) -> None:
    """Raises `ConfigError` unless the task is `able` to give `what`, and answers are drawn from the
    whole distribution: a text in another context has no probability under a part of it."""
    require_task(
        config,
        able,
        f"recipe {objective.name} needs {what}, which {config.task} does not have; a task that "
        "does",
    )
    if config.sampling.top_p != 1:
        raise ConfigError(
            f"sampling.top_p is {config.sampling.top_p}: recipe {objective.name} scores texts that "
            "were not drawn where they stand; set it to 1"
        )
