"""Rounds with problems that the policy writes itself."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from algorithms.language.measures.assembled import Assembled, answers, drawn, own_groups, rate
from algorithms.language.measures.base import LanguageMeasure
from algorithms.language.measures.preferences import bare, part_made_of, placed
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks import text_task
from algorithms.language.tasks.base import Problem
from algorithms.language.tasks.joint import APART, alone
from algorithms.language.tasks.varied import VariedTask, like
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.requirements import Requirement

WRITERS = 8  # one problem in so many is varied in a round; ours
AGAIN = 4  # one problem of a round in so many is one that was proposed before; ours
KEPT = 256  # proposed problems, the latest; ours


class ProposedProblems(LanguageMeasure):
    """To an eighth of a round's problems, rounded down and at least one, the policy writes a group
    of others like it. Each that the task would pose and train on is answered by a group, p of it
    right, which is learned from, too; the text that posed it earns 4 p (1 - p), every other text 0.
    What was posed comes again: a quarter of a round's problems, rounded down, are drawn from the
    latest 256.

    `acts`: what proposed texts earn, mean. Syn-GRPO, "Self-Evolving Data Synthesis for MLLM
    Perception Reasoning"."""

    provides = ()
    fulfils = (Requirement.PROPOSED_PROBLEMS,)
    changes_sampling = True

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.pool: list[dict[str, Any]] = []

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        if part_made_of(text_task(config.task), VariedTask) is None:
            raise ConfigError(
                f"recipe {objective.name} writes its own problems; give a task with these as "
                "answers, such as addition+varied-addition"
            )

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_ = self.agent, Assembled(self.agent)
        part = part_made_of(agent.task, VariedTask)
        assert part is not None
        asked = [bare(agent.task, problem) for problem in problems]
        for i in range(len(asked) // AGAIN if self.pool else 0):
            asked[i] = Problem(**self.pool[drawn(agent, len(self.pool))])
        for rows in own_groups(agent, asked):
            round_.add(rows)
        some = asked[-max(1, len(asked) // WRITERS) :]
        questions = [placed(agent.task, like(alone(p)), part) for p in some]
        written = answers(agent, agent.collector.open(questions))
        made = {
            (i, row.turns[0]): new
            for i, (rows, p) in enumerate(zip(written, some, strict=True))
            for row in rows
            if (new := self.posed(row, p)) is not None
        }
        groups = own_groups(agent, list(made.values())) if made else []
        worth = {
            key: 4 * rate(rows) * (1 - rate(rows)) for key, rows in zip(made, groups, strict=True)
        }
        earned = [worth.get((i, r.turns[0]), 0.0) for i, rows in enumerate(written) for r in rows]
        values = iter(earned)
        for rows in written:
            for row in rows:
                row.replies[-1] = dataclasses.replace(row.replies[-1], reward=next(values))
        for rows in [*written, *groups]:
            round_.add(rows, [{"aided": 1.0} for _ in rows])
        self.pool = [*self.pool, *(dataclasses.asdict(p) for p in made.values())][-KEPT:]
        self.acts = sum(earned) / len(earned)
        return round_.rollouts()

    def posed(self, row: Conversation, shown: Problem) -> Problem | None:
        """The problem that a text poses, of the part that `shown` is of."""
        part: Any = self.agent.task.part(row.problem)
        made = part.valid(alone(row.problem), row.turns[0])
        if made is None or row.cut:
            return None
        return placed(self.agent.task, made, shown.level // APART)

    def begin_stage(self) -> None:
        self.pool = []

    def state_dict(self) -> dict[str, Any]:
        return {"pool": list(self.pool)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pool = list(state["pool"])
