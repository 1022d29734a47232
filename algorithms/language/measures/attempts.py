"""Several attempts at one answer."""

from typing import Any

from algorithms.language.measures.base import LanguageMeasure, require_task
from algorithms.language.measures.locate import outcomes, prompts
from algorithms.language.sampling.rollouts import Rollouts
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.requirements import Requirement


class Attempts(LanguageMeasure):
    """Turns are attempts at one answer. `acts`: the share of conversations whose second attempt
    earned another reward than their first. SCoRe, arXiv 2409.12917."""

    provides = ()
    fulfils = (Requirement.ATTEMPTS,)

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        require_task(
            config,
            lambda task: task.max_turns > 1,
            f"recipe {objective.name} is for several attempts, and {config.task} has one turn; a "
            "task that has more",
        )

    def measure(self, rollouts: Rollouts) -> Rollouts:
        pairs = [row[:2] for row in rollouts.replies]
        other = [len(pair) == 2 and pair[0].reward != pair[1].reward for pair in pairs]
        self.acts = sum(other) / len(other)
        return rollouts


class RightLengths(LanguageMeasure):
    """`acts`: the share of right answers that are longer than the shortest right one of their
    prompt. ROSE, arXiv 2601.05053."""

    provides = ()
    fulfils = (Requirement.RIGHT_LENGTHS,)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        lengths = rollouts.data.mask.sum(1).tolist()
        right = [i for i, earned in enumerate(outcomes(rollouts)) if earned > 0]
        owner, least = prompts(rollouts), dict[int, int]()
        for i in right:
            least[owner[i]] = min(least.get(owner[i], lengths[i]), lengths[i])
        longer = [lengths[i] > least[owner[i]] for i in right]
        self.acts = sum(longer) / max(1, len(longer))
        return rollouts
