"""Regularisers: penalties of steps that are added to the loss with a coefficient."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.policy_gradient.groups import exp
from mbrl.policy_gradient.option import CURRENT_ENTROPY, Option
from mbrl.policy_gradient.ratios import log_difference
from mbrl.types import Trajectories


@dataclass(frozen=True)
class Regulariser(Option):
    """(current log-probs [B, T], current entropies [B, T] or None, advantages [B, T], trajectories)
    to penalties [B, T]."""

    @abstractmethod
    def __call__(
        self, log_prob: Tensor, entropy: Tensor | None, advantage: Tensor, t: Trajectories
    ) -> Tensor: ...


@dataclass(frozen=True)
class KL(Regulariser):
    """`weight` times an estimate of KL(pi || anchor) from one sample, with d = log pi - log anchor:
    k1 d, k2 d^2 / 2, k3 e^-d + d - 1 (Schulman, "Approximating KL Divergence"). On data of the
    current policy the mean gradient of k2 is that of the divergence, those of k1 (0) and k3 are
    not; `weighted` by the ratio to `old`, k1's and k3's are, on data of the old policy."""

    weight: float = 0.04
    estimator: str = "k3"
    anchor: str = "reference"
    weighted: bool = False

    def needs(self) -> tuple[str, ...]:
        names = (self.anchor, *(("old",) if self.weighted else ()))
        return tuple(f"log_probs.{name}" for name in names)

    def __call__(
        self, log_prob: Tensor, entropy: Tensor | None, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        d = log_difference(log_prob, t.log_probs[self.anchor], t.mask)
        penalty = self.weight * ESTIMATORS[self.estimator](d)
        if self.weighted:
            penalty = penalty * exp(log_difference(log_prob, t.log_probs["old"], t.mask))
        return penalty


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda d: d,
    "k2": lambda d: d**2 / 2,
    "k3": lambda d: exp(-d) + d - 1,
}


@dataclass(frozen=True)
class EntropyBonus(Regulariser):
    """Less `weight` times the entropy."""

    weight: float = 0.01

    def needs(self) -> tuple[str, ...]:
        return (CURRENT_ENTROPY,)

    def __call__(
        self, log_prob: Tensor, entropy: Tensor | None, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        assert entropy is not None
        return -self.weight * torch.where(t.mask, entropy, torch.zeros_like(entropy))
