"""What answers mean: which are the same, which the majority gave, how far they are apart."""

import math
import re
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch

from algorithms.language.measures.base import LanguageMeasure, require_task
from algorithms.language.measures.locate import prompts, whole
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks.base import Problem, TextTask
from algorithms.language.tasks.grading import integer
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.measures.agreement import (
    consistency_reward,
    majority_reward,
    similarity_reward,
)
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import with_fields

WORDINGS = 4  # of one problem in a round, at most


class Kinds(LanguageMeasure):
    """`groups.cluster`: conversations of one prompt whose last turns have one `meaning`. `acts`:
    the share of prompts whose answers differ in it."""

    provides = ("groups.cluster",)
    fulfils = (Requirement.ANSWER_CLUSTERS, Requirement.SEQUENCE_KINDS)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        at: dict[tuple[int, int | str], int] = {}
        keys = zip(prompts(rollouts), meanings(rollouts), strict=True)
        ids = [at.setdefault(key, len(at)) for key in keys]
        kinds = [prompt for prompt, _ in at]
        own = set(kinds)
        self.acts = sum(kinds.count(prompt) > 1 for prompt in own) / len(own)
        return with_fields(rollouts, "groups", cluster=whole(rollouts, ids))


class Majority(LanguageMeasure):
    """`signals.majority_reward` of the whole conversation: 1 if its answer has the commonest
    `meaning` of its prompt's answers (of equally common ones the first)."""

    provides = ("signals.majority_reward",)
    fulfils = (Requirement.MAJORITY_AGREEMENT,)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        at: dict[Hashable, int] = {}
        ids = [at.setdefault(key, len(at)) for key in meanings(rollouts)]
        reward = majority_reward(np.array(ids), np.array(prompts(rollouts)))
        return with_fields(rollouts, "signals", majority_reward=whole(rollouts, reward))


class ConsistencyReward(LanguageMeasure):
    """`signals.consistency_reward` in [0, 1] of the whole conversation, by `consistency_reward` of
    mbrl/policy_gradient/measures/agreement.py, for tasks whose answers are intervals
    (`TextTask.interval`). No right answer is looked at.

    `acts`: 1 less the mean confidence of the prompts with an interval. URPA, arXiv 2508.06317."""

    provides = ("signals.consistency_reward",)
    fulfils = (Requirement.MEAN_AGREEMENT,)

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        require_task(
            config,
            lambda task: type(task).interval is not TextTask.interval,
            f"recipe {objective.name} averages answers that are intervals, which those of "
            f"{config.task} are not; a task of intervals",
        )

    def measure(self, rollouts: Rollouts) -> Rollouts:
        task = self.agent.task
        pairs = zip(rollouts.problems, rollouts.turns, strict=True)
        given = [task.interval(problem, turns[-1]) for problem, turns in pairs]
        points = np.array([(math.nan, math.nan) if x is None else x for x in given])
        reward, confidence = consistency_reward(points, np.array(prompts(rollouts)))
        self.acts = float(1 - confidence[confidence > 0].mean()) if (confidence > 0).any() else 0.0
        return with_fields(rollouts, "signals", consistency_reward=whole(rollouts, reward))


class Paraphrases(LanguageMeasure):
    """Rounds hold problems in up to four wordings each. `groups.paraphrases`: conversations about
    one problem in any words; `signals.group_similarity` in [0, 1] of the whole conversation: the
    share of the answers to its other wordings that have the same `meaning` (0 if there are none).
    PS-GRPO, arXiv 2510.04392, with 0 or 1 as the similarity of two answers."""

    provides = ("groups.paraphrases", "signals.group_similarity")
    fulfils = (Requirement.PARAPHRASE_SIMILARITY,)

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        require_task(
            config,
            has_wordings,
            f"recipe {objective.name} compares answers to paraphrases, which {config.task} does "
            "not have; a task that has them",
        )
        if config.prompts < 2:
            raise ConfigError(
                f"prompts is {config.prompts}: recipe {objective.name} compares at least 2 "
                "wordings of a problem"
            )

    def problems(self, problems: Sequence[Problem]) -> Sequence[Problem]:
        """Some of them, neighbours, each in its wordings from its own one on, as many as before.
        Where they begin is drawn: of problems that come again all have their turn."""
        start = torch.randint(
            len(problems), (), generator=self.agent.generator, device=self.agent.device
        )
        chosen: list[Problem] = []
        for problem in [*problems[int(start) :], *problems[: int(start)]]:
            wordings = self.agent.task.paraphrases(problem)
            own = next(i for i, other in enumerate(wordings) if other.prompt == problem.prompt)
            chosen += [*wordings[own:], *wordings[:own]][:WORDINGS]
            if len(chosen) >= len(problems):
                break
        return chosen[: len(problems)]

    def measure(self, rollouts: Rollouts) -> Rollouts:
        at: dict[str, int] = {}
        families = [at.setdefault(p.family or p.prompt, len(at)) for p in rollouts.problems]
        # Equal wordings are one paraphrase, also where a problem came twice.
        names: dict[str, int] = {}
        wordings = [names.setdefault(p.prompt, len(names)) for p in rollouts.problems]
        said = meanings(rollouts)
        alike = np.array([[float(a == b) for b in said] for a in said])
        reward = similarity_reward(alike, np.array(wordings), np.array(families))
        rollouts = with_fields(rollouts, "groups", paraphrases=whole(rollouts, families))
        return with_fields(rollouts, "signals", group_similarity=whole(rollouts, reward))


class PredictedScore(LanguageMeasure):
    """`signals.predicted_score` in [1, 5] of the whole conversation, the answer as a score of
    "Q-Hawkeye", arXiv 2601.22920: 1 for the smallest and 5 for the largest number of the task's
    range (`TextTask.scores`), numbers outside held in it, NaN for what is no number.

    `acts`: the variance of a prompt's scores over the largest that can be, mean over prompts."""

    provides = ("signals.predicted_score",)
    fulfils = (Requirement.PREDICTED_SCORES,)

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        require_task(
            config,
            lambda task: task.scores is not None,
            f"recipe {objective.name} reads answers as scores of a fixed range, which "
            f"{config.task} does not have; a task that has one",
        )

    def measure(self, rollouts: Rollouts) -> Rollouts:
        low, high = self.agent.task.scores
        given = [x if isinstance(x, int) else math.nan for x in meanings(rollouts)]
        scores = [1 + 4 * (min(max(x, low), high) - low) / (high - low) for x in given]
        by: dict[int, list[float]] = {}
        for prompt, x, score in zip(prompts(rollouts), given, scores, strict=True):
            by.setdefault(prompt, []).extend([] if math.isnan(x) else [score])
        self.acts = float(np.mean([np.var(own) / 4 if own else 0.0 for own in by.values()]))
        scores = [math.nan if math.isnan(x) else s for x, s in zip(given, scores, strict=True)]
        return with_fields(rollouts, "signals", predicted_score=whole(rollouts, scores))


def has_wordings(task: TextTask) -> bool:
    return type(task).paraphrases is not TextTask.paraphrases


def pieces(turn: str) -> list[str]:
    """What stands between the characters ";", "<" and ">" of a turn, empty pieces left out."""
    return [piece for piece in re.split("[;<>]", turn) if piece]


def number(text: str) -> int | None:
    """The number that `text` is, also after the word "answer"."""
    return integer(text.removeprefix("answer "))


def meaning(turn: str) -> int | str:
    """The answer that a turn ends with: the number that its last piece is, or else that text."""
    last = (pieces(turn) or [""])[-1]
    value = number(last)
    return last if value is None else value


def meanings(rollouts: Rollouts) -> list[int | str]:
    return [meaning(turns[-1]) for turns in rollouts.turns]
