"""SquareCB: "Beyond UCB: Optimal and Efficient Contextual Bandits with Regression Oracles" (arXiv
2002.04926), and its rule, inverse gap weighting.

Differences: gamma grows with the rows learned, as in Vowpal Wabbit (cb_explore_adf_squarecb.cc),
whose defaults these are; the theorem's gamma is constant and needs the horizon. Their variant that
eliminates actions is left out.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from algorithms.bandits.base import BanditLearner
from algorithms.bandits.oracle import OracleConfig
from mbrl.config import NonNegative, Settings


@dataclass(frozen=True)
class SquareCBConfig(Settings):
    """Settings of SquareCB."""

    oracle: OracleConfig = field(default_factory=OracleConfig)
    gamma_scale: NonNegative = 10.0  # gamma = scale * rows learned ^ exponent
    gamma_exponent: NonNegative = 0.5  # 0: a constant gamma


def inverse_gap_weights(reward: Tensor, gamma: float) -> Tensor:
    """p_a = 1 / (K + gamma (f_b - f_a)) for a other than b = argmax f, p_b the rest, [B, K] from
    expected rewards f [B, K] (Algorithm 1 with mu = K). gamma 0 is uniform."""
    best, at = reward.max(1, keepdim=True)
    p = 1 / (reward.shape[1] + gamma * (best - reward))
    return rest_to(p, at)


def rest_to(p: Tensor, at: Tensor) -> Tensor:
    """`p` [B, K] with what is left to 1 at the action `at` [B, 1]."""
    p = p.scatter(1, at, 0.0)
    return p.scatter(1, at, 1 - p.sum(1, keepdim=True))


class SquareCB(BanditLearner):
    """Probabilities inversely proportional to the gap to the best prediction.

    Formula:

        oracle         f = argmin sum (f(x, a) - r)^2, online, without importance weights
        probabilities  p_a = 1 / (K + gamma (f_b - f_a)) for a other than b = argmax f,
                       p_b = 1 - sum of the others
        schedule       gamma = scale t^exponent, t rows learned

    When not to use it: where rewards are near their best value for most actions and few mistakes
    matter: FastCB then explores less. Where the oracle cannot represent the rewards, its gaps and
    so its exploration are wrong.
    """

    config: SquareCBConfig

    def explore(self, reward: Tensor) -> Tensor:
        c = self.config
        gamma = c.gamma_scale * float(self.learned) ** c.gamma_exponent
        return inverse_gap_weights(reward[0], gamma)


def regret_bound(actions: int, rounds: int, regression_regret: float, delta: float = 0.05) -> float:
    """Theorem 1: with probability 1 - `delta` the regret of `rounds` decisions is at most
    4 sqrt(K T R) + 8 sqrt(K T log(2 / delta)), where R bounds the oracle's regret of squared loss
    and gamma = sqrt(K T / (R + log(2 / delta)))."""
    size = torch.tensor(float(actions * rounds), dtype=torch.float64)
    logarithm = torch.log(torch.tensor(2 / delta, dtype=torch.float64))
    return float(4 * (size * regression_regret).sqrt() + 8 * (size * logarithm).sqrt())
