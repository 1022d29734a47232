"""Epsilon-greedy decisions over a regression oracle; with epsilon 0 greedy ones."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from algorithms.bandits.base import BanditLearner
from algorithms.bandits.oracle import OracleConfig
from mbrl.config import Probability, Settings


@dataclass(frozen=True)
class EpsilonGreedyConfig(Settings):
    """Settings of epsilon-greedy."""

    oracle: OracleConfig = field(default_factory=OracleConfig)
    epsilon: Probability = 0.05  # share of uniform decisions; 0: greedy


def greedy_shares(reward: Tensor) -> Tensor:
    """1 at the largest of `reward` [..., K], shared evenly by ties."""
    top = (reward == reward.amax(-1, keepdim=True)).to(reward.dtype)
    return top / top.sum(-1, keepdim=True)


class EpsilonGreedy(BanditLearner):
    """The best prediction, but for a share of uniform decisions.

    Formula:

        probabilities  p_a = (1 - epsilon) [a = argmax f] + epsilon / K

    When not to use it: over many rounds its regret grows in proportion to them, since epsilon
    stays; and most of its exploration goes to actions that are known to be bad.
    """

    config: EpsilonGreedyConfig

    def explore(self, reward: Tensor) -> Tensor:
        greedy = greedy_shares(reward[0])
        epsilon = self.config.epsilon
        return (1 - epsilon) * greedy + epsilon * torch.full_like(greedy, 1 / reward.shape[2])
