"""Rounds in which answers are given in modes, some of which are forced."""

from collections.abc import Sequence
from typing import Any

from algorithms.language.measures.assembled import Assembled, answers, check_help, own_groups, right
from algorithms.language.measures.base import LanguageMeasure
from algorithms.language.sampling.contexts import opening
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.sampling.prefixes import PREFIX
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks import text_task
from algorithms.language.tasks.base import Problem
from algorithms.language.tasks.routed import AT_ONCE, WORKED, RoutedTask
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.requirements import Requirement

EASY = 0.5  # share of answers at once that are right, from which on a problem needs no steps; ours
POWER = 2  # of the share of forced answers that are right, in what needless steps lose


class ModeRouting(LanguageMeasure):
    """A quarter of a group, rounded down, is made to answer at once and as much to write steps: the
    character that says so is read, not learned from. The others choose. `signals.routed` of the
    whole answer: 1 if it is right, 1 - p^2 if it is right after steps and at least half of the
    group's answers at once are, else 0, p the share of forced answers that are right.

    `acts`: the share of right answers that lose something so. A^2FM: "An Adaptive Agent Foundation
    Model for Tool-Aware Hybrid Reasoning"."""

    provides = ("signals.routed",)
    fulfils = (Requirement.MODE_ROUTING,)
    changes_sampling = True

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_help(objective, config, lambda task: True, "")
        if not isinstance(text_task(config.task), RoutedTask):
            raise ConfigError(
                f"recipe {objective.name} chooses between answers at once and steps, and "
                f"{config.task} has no modes; take routed-chain"
            )
        if config.group < 4:
            raise ConfigError(
                f"group is {config.group}: recipe {objective.name} forces a quarter of it into "
                "each mode; set it to 4 or more"
            )

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_ = self.agent, Assembled(self.agent)
        each = agent.config.group // 4
        starts = [self.begun(p, mode) for p in problems for mode in (AT_ONCE, WORKED)]
        forced = answers(agent, starts, each)
        free = own_groups(agent, problems, agent.config.group - 2 * each)
        lost = solved = 0
        for i, rows in enumerate(free):
            made = [row for some in forced[2 * i : 2 * i + 2] for row in some]
            worths = routed_rewards([*made, *rows], len(made))
            paid = [worth for row, worth in zip([*made, *rows], worths, strict=True) if right(row)]
            solved += len(paid)
            lost += sum(worth < 1 for worth in paid)
            aided = [1.0] * len(made) + [0.0] * len(rows)
            pairs = zip(worths, aided, strict=True)
            round_.add([*made, *rows], [{"routed": w, "aided": a} for w, a in pairs])
        self.acts = lost / max(1, solved)
        return round_.rollouts("routed")

    def begun(self, problem: Problem, mode: str) -> Conversation:
        """An answer that has its mode already."""
        codec = self.agent.codec
        row = Conversation(problem, opening(codec, problem))
        start = len(row.tokens)
        tokens = codec.turn(mode)[:-1]
        row.extend_turn(tokens)
        row.origins = [(start, len(row.tokens), PREFIX)]
        row.behaviour, row.model = [0.0] * len(tokens), [0.0] * len(tokens)
        row.versions = [self.agent.updates] * len(tokens)
        return row


def routed_rewards(rows: Sequence[Conversation], forced: int) -> list[float]:
    """What the answers of a group earn, of which the first `forced` had their mode given: less for
    steps where answers at once do, by how many forced ones are right."""
    at_once = [right(row) for row in rows if row.turns[0].startswith(AT_ONCE)]
    easy = bool(at_once) and sum(at_once) / len(at_once) >= EASY
    lost = (sum(map(right, rows[:forced])) / max(1, forced)) ** POWER
    return [
        float(right(row)) * (1 - lost * (easy and not row.turns[0].startswith(AT_ONCE)))
        for row in rows
    ]
