"""CRR: Critic Regularized Regression (arXiv 2006.15134), with scalar critics.

Differences: critics predict the mean return (the paper: a distribution over it); targets follow by
an exponential average (the implementation in Acme: copied every 100 updates) and the next action
comes from the policy itself, not from a target policy; the policy is a Gaussian around a tanh mean;
actions are the policy's own, not resampled by their values when acting.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Generator, Tensor

from algorithms.learners.advantage_weighted import (
    AdvantageWeighted,
    AdvantageWeightedConfig,
    exponential_weight,
)
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, Positive


@dataclass(frozen=True)
class CRRConfig(AdvantageWeightedConfig):
    """Settings of CRR; `exp` with `mean` and `binary` with `max` are the paper's main forms."""

    filter: Literal["exp", "binary"] = "exp"  # min(exp(A / beta), bound), or 1 where A > 0
    baseline: Literal["mean", "max"] = "mean"  # what A subtracts: mean or largest sampled value
    samples: Count = 4  # m, the policy's actions that are valued a state
    beta: Positive = 1.0  # temperature of the exponential filter
    max_weight: Positive = 20.0  # its upper bound
    critics: Count = 1  # with more, their minimum is the value


def binary_weight(advantage: Tensor) -> Tensor:
    """1 where the advantage [B] is above 0, else 0 (eq. 3)."""
    return (advantage > 0).to(advantage.dtype)


class CRR(Agent[Batch]):
    """Critic-regularised regression.

    Formula:

        critics      y = r + gamma min_n Q'_n(s', a'), a' ~ pi(s')
                     L = sum_n mean (Q_n(s, a) - y)^2
        policy       L = -mean f(A) log pi(a|s), f(A) = min(exp(A / beta), bound) or 1(A > 0)
                     A = min_n Q_n(s, a) - mean or max over k of min_n Q_n(s, a_k), a_k ~ pi(s)

    When not to use it: where the data are narrow: its critics value the policy's own actions, and
    by default there is one critic and no minimum. No table of ours compares it yet; IQL is measured
    and close in kind.
    """

    version = 1
    config: CRRConfig

    def build(self, generator: Generator) -> tuple[AdvantageWeighted, LoggedRows]:
        c = self.config
        learner = AdvantageWeighted(
            self.spec,
            c,
            self.device,
            generator,
            self.weight,
            baseline=c.baseline,
            samples=c.samples,
        )
        return learner, LoggedRows.of(self.spec, c, self.device)

    def weight(self, advantage: Tensor) -> Tensor:
        """Equations 3 and 4."""
        if self.config.filter == "binary":
            return binary_weight(advantage)
        return exponential_weight(advantage, 1 / self.config.beta, self.config.max_weight)
