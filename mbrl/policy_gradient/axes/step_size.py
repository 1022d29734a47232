"""Step sizes: a factor of the learning rate, from how far the data are from the policy."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mbrl.config import Finite, NonNegative
from mbrl.policy_gradient.axes.gate import bounds
from mbrl.policy_gradient.axes.option import Option
from mbrl.policy_gradient.axes.ratio import log_difference
from mbrl.policy_gradient.groups import LARGEST, exp
from mbrl.training import Metrics
from mbrl.types import Trajectories


@dataclass(frozen=True)
class StepSize(Option):
    """(log-ratios [B, T] and current log-probs [B, T], neither with a gradient, advantages [B, T],
    trajectories) to a scalar."""

    @abstractmethod
    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor: ...


@contextmanager
def at_rate(optimiser: torch.optim.Optimizer, metrics: Metrics) -> Iterator[None]:
    """Steps of `optimiser` inside have their learning rates times `policy/step_size` of a loss's
    metrics, where that is there. Reads the factor back from the device."""
    if "policy/step_size" not in metrics:
        yield
        return
    factor, rates = float(metrics["policy/step_size"]), [g["lr"] for g in optimiser.param_groups]
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        group["lr"] = rate * factor
    try:
        yield
    finally:
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate


@dataclass(frozen=True)
class EffectiveSamples(StepSize):
    """min(1, share of effective samples) to the `power`, the share that of the sequences' weights
    pi / `denominator`: (sum w)^2 / (B sum w^2)."""

    text: ClassVar[str] = "(share of effective samples of pi / pi_{denominator})^{power}, at most 1"

    power: Finite = 0.5
    denominator: str = "behaviour"

    def needs(self) -> tuple[str, ...]:
        return (f"log_probs.{self.denominator}",)

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        log_w = log_difference(log_prob, t.log_probs[self.denominator], t.mask).sum(1)
        return effective_share(log_w, t.mask.any(1)).clamp_max(1) ** self.power


def effective_share(log_w: Tensor, where: Tensor) -> Tensor:
    """(sum w)^2 / (n sum w^2) of the n weights e^`log_w` [B] `where` is True, in logarithms."""
    log_w = torch.where(where, log_w, torch.full_like(log_w, -torch.inf))
    log_n = where.sum().clamp_min(1).to(log_w.dtype).log()
    share = 2 * log_w.logsumexp(0) - (2 * log_w).logsumexp(0) - log_n
    return share.clamp(-LARGEST, 0).exp()


@dataclass(frozen=True)
class ClippingBias(StepSize):
    """1 over the larger of 1 and |C|, C the sum of r A over steps that PPO's range (1 - low, 1 +
    high) clips, over all steps: strongly off-policy batches take smaller steps."""

    text: ClassVar[str] = (
        "1 / max(1, |sum of rho A over steps outside (1 - {low}, 1 + {high})| / steps)"
    )

    low: NonNegative = 0.2
    high: NonNegative = 0.2

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        low, high = bounds(self.low, self.high)
        clipped = ((advantage > 0) & (log_ratio > high)) | ((advantage < 0) & (log_ratio < low))
        lost = torch.where(
            clipped & t.mask, exp(log_ratio) * advantage, torch.zeros_like(advantage)
        )
        return 1 / (lost.sum() / t.mask.sum().clamp_min(1)).abs().clamp_min(1)
