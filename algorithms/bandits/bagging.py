"""Bagging for contextual bandits: "A Contextual Bandit Bake-off" (arXiv 1802.04064), after Vowpal
Wabbit's cb_explore_adf_bag.cc: an online bootstrap of the regression oracle."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from algorithms.bandits.base import BanditLearner
from algorithms.bandits.epsilon_greedy import greedy_shares
from algorithms.bandits.oracle import OracleConfig
from mbrl.config import Count, Probability, Settings


@dataclass(frozen=True)
class BaggingConfig(Settings):
    """Settings of bagging."""

    oracle: OracleConfig = field(default_factory=OracleConfig)
    bags: Count = 8  # members of the oracle
    epsilon: Probability = 0.0  # share of uniform decisions beside


class Bagging(BanditLearner):
    """An action is as likely as there are members that prefer it.

    Formula:

        oracle         E regressions, each row counted Poisson(1) times in each of them
        probabilities  p_a = mean over members of [a = argmax f_e], ties shared

    When not to use it: members cost E times as much; and where all of them agree, wrongly, nothing
    explores (`epsilon` then helps).
    """

    config: BaggingConfig

    def __init__(
        self, context_size: int, actions: int, config: BaggingConfig, seed: int = 0
    ) -> None:
        self.members = config.bags
        super().__init__(context_size, actions, config, seed)

    def explore(self, reward: Tensor) -> Tensor:
        shares = greedy_shares(reward).mean(0)
        epsilon = self.config.epsilon
        return (1 - epsilon) * shares + epsilon * torch.full_like(shares, 1 / reward.shape[2])

    def row_weights(self, count: int) -> Tensor:
        return torch.poisson(torch.ones(self.members, count), generator=self.generator)
