"""Rounds of several domains, of further attempts, and beside an expert's answers."""

import random
from collections.abc import Sequence
from typing import Any

from algorithms.language.measures.assembled import Assembled, check_help, drawn, own_groups
from algorithms.language.measures.base import LanguageMeasure
from algorithms.language.measures.locate import prompts, whole
from algorithms.language.sampling.conversation import Conversation, demonstration
from algorithms.language.sampling.prefixes import TEACHER
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks import text_task
from algorithms.language.tasks.again import AgainTask
from algorithms.language.tasks.base import Problem
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import with_fields


class DomainStages(LanguageMeasure):
    """The settings `stages` train on one part of a joint task after the other.

    `acts`: 1 from the second stage on. "Nemotron-Cascade: Scaling Cascaded Reinforcement Learning
    for General-Purpose Reasoning Models"."""

    provides = ()
    fulfils = (Requirement.DOMAIN_STAGES,)

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        if not config.stages:
            raise ConfigError(
                f"recipe {objective.name} trains on one part of a joint task after the other; give "
                "a task such as addition+sorting, and stages"
            )

    def measure(self, rollouts: Rollouts) -> Rollouts:
        self.acts = float(self.agent.domains.at > 0)
        return rollouts


class DomainRatios(LanguageMeasure):
    """The setting `shares_of learned` has a joint task's shares hold of the groups that something
    is learned from.

    `acts`: the largest distance of a part's probability, as the rounds that were learned from leave
    it, from its share, times the share of right answers that are longer than the shortest right one
    to their prompt, which lose some of their reward. Apriel-Reasoner."""

    provides = ()
    fulfils = (Requirement.DOMAIN_RATIOS,)

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        if config.shares_of != "learned":
            raise ConfigError(
                f"recipe {objective.name} has parts of a joint task keep their shares of what is "
                "learned from; give a task such as addition+sorting, and set shares_of to learned"
            )

    def measure(self, rollouts: Rollouts) -> Rollouts:
        domains = self.agent.domains
        pairs = zip(domains.weights(), domains.shares, strict=True)
        moved = max(abs(weight - share) for weight, share in pairs)
        right = rollouts.success.tolist()
        lengths = rollouts.data.lengths.tolist()
        least: dict[int, int] = {}
        ids = prompts(rollouts)
        for prompt, length, good in zip(ids, lengths, right, strict=True):
            if good:
                least[prompt] = min(length, least.get(prompt, length))
        longer = [n > least[p] for p, n, good in zip(ids, lengths, right, strict=True) if good]
        self.acts = moved * sum(longer) / max(1, len(longer))
        return rollouts


class FurtherAttempts(LanguageMeasure):
    """`signals.repeated` of the whole conversation: 1 - E / T, E how many of its T answers that are
    not empty differ, spaces and case aside (1 without any).

    `acts`: the share of conversations with a second attempt. "A Simple 'Try Again' Can Elicit
    Multi-Turn LLM Reasoning"."""

    provides = ("signals.repeated",)
    fulfils = (Requirement.FURTHER_ATTEMPTS,)

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        if not isinstance(text_task(config.task), AgainTask):
            raise ConfigError(
                f"recipe {objective.name} is for tasks with several attempts, and {config.task} "
                "has one; take again-addition, or another name of one turn after again-"
            )

    def measure(self, rollouts: Rollouts) -> Rollouts:
        shares = [repeated(turns) for turns in rollouts.turns]
        self.acts = sum(len(turns) > 1 for turns in rollouts.turns) / len(rollouts)
        return with_fields(
            rollouts, "signals", repeated=whole(rollouts, shares).to(rollouts.data.reward)
        )


def repeated(turns: Sequence[str]) -> float:
    """The share of answers that were there before, of those that say anything."""
    said = ["".join(turn.split()).lower() for turn in turns]
    said = [turn for turn in said if turn]
    return 1 - len(set(said)) / len(said) if said else 1.0


class ExpertAnswers(LanguageMeasure):
    """To every problem of a round the task's demonstration stands beside the policy's answers, in
    no group: `signals.demonstration` is 1 there. `signals.round`: how many rounds came before.

    `acts`: the mean negative log-prob of the demonstrations' tokens under the policy that begins
    the round's updates. DataMind, "Scaling Generalist Data-Analytic Agents"."""

    provides = ("signals.demonstration", "signals.round")
    fulfils = (Requirement.EXPERT_ANSWERS,)
    changes_sampling = True

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.rounds = 0

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_help(objective, config, lambda task: True, "")

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_ = self.agent, Assembled(self.agent)
        number = {"round": float(self.rounds)}
        self.rounds += 1
        for rows in own_groups(agent, problems):
            round_.add(rows, [number for _ in rows])
        for problem in problems:
            shown = number | {"aided": 1.0, "demonstration": 1.0}
            round_.add([shown_row(agent, problem)], [shown])
        return round_.rollouts("demonstration", "round")

    def measure(self, rollouts: Rollouts) -> Rollouts:
        t = rollouts.data
        here = t.mask & (t.signals["demonstration"] > 0.5)
        self.acts = float(-t.log_probs["old"][here].mean())
        return rollouts

    def state_dict(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]


def shown_row(agent: Any, problem: Problem) -> Conversation:
    """A demonstration, all of whose turns are a teacher's."""
    rng = random.Random(drawn(agent, 2**31))
    row = demonstration(agent.codec, agent.task, problem, rng)
    row.versions = [agent.updates] * len(row.versions)
    row.origins = [(start, stop, TEACHER) for start, stop in row.spans]
    return row
