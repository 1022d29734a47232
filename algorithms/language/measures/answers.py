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
    """`groups.cluster`: conversations of one prompt whose last turns have one `meaning`."""

    provides = ("groups.cluster",)
    fulfils = (Requirement.ANSWER_CLUSTERS, Requirement.SEQUENCE_KINDS)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        at: dict[Hashable, int] = {}
        keys = zip(prompts(rollouts), meanings(rollouts), strict=True)
        ids = [at.setdefault(key, len(at)) for key in keys]
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
    mbrl/policy_gradient/measures/agreement.py. A prediction is two numbers in [0, 1]: where the
    answer lies between the smallest (0) and the largest (1) number of its prompt's answers, 1/2 if
    they are one or the answer is no number; and 1 if it is a number, else 0. For tasks with numbers
    as answers: other texts are all alike."""

    provides = ("signals.consistency_reward",)
    fulfils = (Requirement.MEAN_AGREEMENT,)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        places = relative(rollouts)
        points = [[0.5, 0.0] if math.isnan(x) else [x, 1.0] for x in places]
        reward = consistency_reward(np.array(points), np.array(prompts(rollouts)))
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
    "Q-Hawkeye", arXiv 2601.22920: 1 for the smallest and 5 for the largest number of its prompt's
    answers, 3 if they are one, 1 for what is no number."""

    provides = ("signals.predicted_score",)
    fulfils = (Requirement.PREDICTED_SCORES,)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        scores = [1.0 if math.isnan(x) else 1 + 4 * x for x in relative(rollouts)]
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


def relative(rollouts: Rollouts) -> list[float]:
    """Where every answer lies between the smallest (0) and the largest (1) number of its prompt's
    answers, 1/2 if they are one, NaN for what is no number."""
    values = [x if isinstance(x, int) else None for x in meanings(rollouts)]
    by: dict[int, list[int]] = {}
    for prompt, value in zip(prompts(rollouts), values, strict=True):
        if value is not None:
            by.setdefault(prompt, []).append(value)
    places = []
    for prompt, value in zip(prompts(rollouts), values, strict=True):
        if value is None:
            places.append(math.nan)
            continue
        low, high = min(by[prompt]), max(by[prompt])
        places.append((value - low) / (high - low) if high > low else 0.5)
    return places
