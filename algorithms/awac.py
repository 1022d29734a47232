"""AWAC: Accelerating Online Reinforcement Learning with Offline Datasets (arXiv 2006.09359), on
logged data.

Differences from the authors' code: no pre-training; two hidden layers of 256
and 256 rows an update (theirs: policies of four layers, 1024 rows), no weight decay; the policy's
log-deviation is clipped to [-5, 2] (theirs: squashed into [-6, 0]), its samples to the action
bounds. As in their code the weights are normalised over the batch; the paper's update leaves the
normaliser out.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from algorithms.learners.advantage_weighted import AdvantageWeighted, AdvantageWeightedConfig
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Positive


@dataclass(frozen=True)
class AWACConfig(AdvantageWeightedConfig):
    """Settings of AWAC."""

    temperature: Positive = 1.0  # lambda of the advantage weights


def softmax_weight(advantage: Tensor, temperature: float) -> Tensor:
    """exp(A / lambda) over its batch mean, [B]: B times a softmax over the batch."""
    return len(advantage) * torch.softmax(advantage / temperature, 0)


class AWAC(Agent[Batch]):
    """Advantage-weighted actor-critic.

    Formula:

        critics      y = r + gamma min_n Q'_n(s', a'), a' ~ pi(s')
                     L = sum_n mean (Q_n(s, a) - y)^2
        policy       L = -mean w log pi(a|s), w = exp(A / lambda) / batch mean of exp(A / lambda)
                     A = min_n Q_n(s, a) - min_n Q_n(s, a_pi), a_pi ~ pi(s)

    When not to use it: where the data are narrow: its critics value the policy's own actions, which
    may lie outside the data, where IQL with the same kind of policy step values logged ones alone.
    No table of ours compares it yet.
    """

    version = 1
    config: AWACConfig

    def build(self, generator: Generator) -> tuple[AdvantageWeighted, LoggedRows]:
        c = self.config
        learner = AdvantageWeighted(self.spec, c, self.device, generator, self.weight)
        return learner, LoggedRows.of(self.spec, c, self.device)

    def weight(self, advantage: Tensor) -> Tensor:
        return softmax_weight(advantage, self.config.temperature)
