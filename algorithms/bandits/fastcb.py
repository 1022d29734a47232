"""FastCB: "Efficient First-Order Contextual Bandits: Prediction, Allocation, and Triangular
Discrimination" (arXiv 2107.02237). No code of its authors was at hand: the form for losses is
reconstructed and checked against the inequality of the paper's regret bound, the form for rewards
is that of the published code of Pearl (facebookresearch/Pearl).

Differences: gamma grows with the rows learned, as SquareCB's does here.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from algorithms.bandits.base import BanditLearner
from algorithms.bandits.oracle import OracleConfig
from algorithms.bandits.squarecb import rest_to
from mbrl.config import NonNegative, Settings


def _log_loss() -> OracleConfig:
    return OracleConfig(loss="log")


@dataclass(frozen=True)
class FastCBConfig(Settings):
    """Settings of FastCB."""

    oracle: OracleConfig = field(default_factory=_log_loss)
    gamma_scale: NonNegative = 10.0  # gamma = scale * rows learned ^ exponent
    gamma_exponent: NonNegative = 0.5
    small: Literal["loss", "reward"] = "loss"  # which is near 0 where the problem is easy


def reweighted_gap_weights(
    reward: Tensor, gamma: float, small: Literal["loss", "reward"] = "loss"
) -> Tensor:
    """p_a = y_b / (K y_b + gamma |y_a - y_b|) for a other than the best b, p_b the rest, [B, K]
    from expected rewards [B, K] in [0, 1]: y is the loss 1 - f (the paper's), or with `small` the
    reward f itself (Pearl's). Where y_b is 0: all on b for losses, uniform for rewards, as Pearl
    does where nothing has paid yet. Rewards outside of [0, 1] count as its ends, but b is the best
    of them as they are."""
    at = reward.max(1, keepdim=True)[1]
    reward = reward.clamp(0.0, 1.0)
    actions, best = reward.shape[1], reward.gather(1, at)
    level = 1 - best if small == "loss" else best
    nowhere = level <= 0
    divisor = actions * level + gamma * (best - reward)
    p = torch.where(nowhere, torch.zeros_like(reward), level / torch.where(nowhere, 1.0, divisor))
    if small == "reward":
        p = torch.where(nowhere, torch.full_like(reward, 1 / actions), p)
    return rest_to(p, at)


class FastCB(BanditLearner):
    """Inverse gap weighting whose gaps count relative to the best loss, with a log-loss oracle.

    Formula:

        oracle         f = argmin of the cross-entropy of rewards, online
        probabilities  p_a = y_b / (K y_b + gamma (y_a - y_b)), y = 1 - f, b = argmin y,
                       p_b = 1 - sum of the others
        schedule       gamma = scale t^exponent, t rows learned

    When not to use it: where the best action still loses often: its weights are then SquareCB's
    with a larger gamma, and the log-loss is the harder regression. An oracle that is sure too early
    stops its exploration.
    """

    config: FastCBConfig

    def explore(self, reward: Tensor) -> Tensor:
        c = self.config
        gamma = c.gamma_scale * float(self.learned) ** c.gamma_exponent
        return reweighted_gap_weights(reward[0], gamma, c.small)
