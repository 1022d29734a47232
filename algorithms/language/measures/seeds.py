"""Solved examples before prompts that the policy does not solve."""

from collections.abc import Sequence
from typing import Any

from algorithms.language.measures.assembled import (
    Assembled,
    answers,
    check_help,
    own_groups,
    rate,
    right,
)
from algorithms.language.measures.base import LanguageMeasure, require_one_turn
from algorithms.language.prompts import prompt_features
from algorithms.language.sampling.contexts import after_example
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks.base import Problem
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.requirements import Requirement

POOL = 256  # solved examples that are kept, the latest ones; ours


class SeededAttempts(LanguageMeasure):
    """Half of a group, rounded up, is sampled first. Where none of it is right, the other half has
    a solved example before the prompt, of all that the policy has solved so far (the latest 256
    prompts) the one whose prompt is most alike; else it is sampled as the first. All are one
    group, each learned from in the context in which it was sampled.

    `acts`: the share of answers with an example that are right, where without none was. "XRPO:
    Pushing the limits of GRPO with Targeted Exploration and Exploitation", arXiv 2510.06672."""

    provides = ()
    fulfils = (Requirement.SEEDED_ATTEMPTS,)
    changes_sampling = True

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.pool: dict[str, str] = {}  # answers by their prompts, oldest first

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_help(objective, config, lambda task: True, "")
        why = f"shows solved examples of one turn, and {config.task} has more"
        require_one_turn(objective, config, why)
        if config.group < 2:
            raise ConfigError(
                f"group is {config.group}: recipe {objective.name} samples half of it after the "
                "other half; set it to 2 or more"
            )

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, size = self.agent, self.agent.config.group
        first = own_groups(agent, problems, -(-size // 2))
        failed = [i for i, rows in enumerate(first) if self.pool and not any(map(right, rows))]
        starts = agent.collector.open(problems)
        for i in failed:
            text = after_example(agent.codec, problems[i], self.nearest(problems[i]))
            starts[i] = Conversation(problems[i], text)
        second = answers(agent, starts, size // 2)
        round_, seeded = Assembled(agent), [second[i] for i in failed]
        for i, (rows, more) in enumerate(zip(first, second, strict=True)):
            numbers = [{"aided": 0.0}] * len(rows) + [{"aided": float(i in failed)}] * len(more)
            round_.add([*rows, *more], numbers)
            self.remember([row for row in (*rows, *more) if right(row)])
        tried = [rate(rows) for rows in seeded if rows]
        self.acts = sum(tried) / max(1, len(tried))
        return round_.rollouts()

    def nearest(self, problem: Problem) -> tuple[str, str]:
        """The solved example whose prompt is most like the problem's, of equal ones the latest."""
        own = prompt_features(problem.prompt)
        known = [p for p in self.pool if p != problem.prompt] or list(self.pool)
        best = max(reversed(known), key=lambda prompt: float(own @ prompt_features(prompt)))
        return best, self.pool[best]

    def remember(self, rows: Sequence[Conversation]) -> None:
        for row in rows:
            self.pool.pop(row.problem.prompt, None)
            self.pool[row.problem.prompt] = row.turns[-1]
        for prompt in list(self.pool)[:-POOL]:
            del self.pool[prompt]

    def state_dict(self) -> dict[str, Any]:
        return {"pool": [[prompt, answer] for prompt, answer in self.pool.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pool = dict(state["pool"])
