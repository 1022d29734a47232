"""IQL for discrete actions: Offline Reinforcement Learning with Implicit Q-Learning
(arXiv 2110.06169) with a categorical policy and critics that have one output an action. Settings
and update are those of `algorithms.iql`.

Differences: those of `algorithms.iql`; the paper has continuous actions alone.
"""

import torch.nn.functional as F
from torch import Tensor

from algorithms.iql import IQL
from mbrl.buffer import Batch
from mbrl.networks import CategoricalPolicy


class DiscreteIQL(IQL):
    """Implicit Q-learning for discrete actions."""

    version = 1
    action_kinds = ("discrete",)
    policy_class = CategoricalPolicy

    def log_prob(self, batch: Batch) -> Tensor:
        """log pi(a|s) [B] of the logged actions."""
        return -F.cross_entropy(self.policy.logits(batch.obs), batch.action, reduction="none")
