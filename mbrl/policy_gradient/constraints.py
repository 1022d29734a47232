"""Regularisers that hold the policy near or away from another, beyond one penalty for all steps."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.policy_gradient.groups import exp
from mbrl.policy_gradient.ratios import log_difference
from mbrl.policy_gradient.regularisers import ESTIMATORS, KL, Regulariser
from mbrl.types import Trajectories


@dataclass(frozen=True)
class HingeKL(Regulariser):
    """`weight` / 2 max(K - `limit`, 0)^2 with K the mean over all steps of r - 1 - log r, r the
    ratio to `anchor`: KL(anchor || pi) on its own data. Alike at all steps. Log-ratios count as no
    more than 20, so that the square fits float32."""

    weight: float = 1e3
    limit: float = 1e-4
    anchor: str = "old"

    def needs(self) -> tuple[str, ...]:
        return (f"log_probs.{self.anchor}",)

    def __call__(
        self, log_prob: Tensor, entropy: Tensor | None, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        d = log_difference(log_prob, t.log_probs[self.anchor], t.mask).clamp_max(20)
        divergence = (exp(d) - 1 - d).sum() / t.mask.sum().clamp_min(1)
        return (self.weight / 2 * (divergence - self.limit).clamp_min(0) ** 2).expand_as(log_prob)


@dataclass(frozen=True)
class SegmentKL(KL):
    """`KL` at the steps of one segment alone: its number `index`."""

    segment: str = "turn"
    index: int = 0

    def needs(self) -> tuple[str, ...]:
        return (*super().needs(), f"segments.{self.segment}")

    def __call__(
        self, log_prob: Tensor, entropy: Tensor | None, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        penalty = super().__call__(log_prob, entropy, advantage, t)
        own = t.segments[self.segment] == self.index
        return torch.where(own, penalty, torch.zeros_like(penalty))


@dataclass(frozen=True)
class Contrast(Regulariser):
    """Less `weight` times the mean over all steps of the k3 estimate of KL(pi || `anchor`), at most
    `most` a step (log-ratios at most 20): `anchor` is what the policy thinks of the same answer
    with its picture spoiled, and is to differ. Alike at all steps. Q-Hawkeye, arXiv 2601.22920."""

    weight: float = 1e-4
    anchor: str = "degraded"
    most: float = 10.0

    def needs(self) -> tuple[str, ...]:
        return (f"log_probs.{self.anchor}",)

    def __call__(
        self, log_prob: Tensor, entropy: Tensor | None, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        d = log_difference(log_prob, t.log_probs[self.anchor], t.mask).clamp(-20, 20)
        apart = ESTIMATORS["k3"](d).clamp_max(self.most).sum() / t.mask.sum().clamp_min(1)
        return (-self.weight * apart).expand_as(log_prob)
