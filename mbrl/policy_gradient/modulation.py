"""Modulation: what happens to advantages after they were normalised."""

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from mbrl.policy_gradient.groups import BATCH, by_sign, group
from mbrl.policy_gradient.option import Option
from mbrl.types import Trajectories


@dataclass(frozen=True)
class Modulation(Option):
    """(advantages [B, T], steps that stand for one advantage each [B, T], trajectories) to
    advantages [B, T]."""

    @abstractmethod
    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor: ...


@dataclass(frozen=True)
class Whiten(Modulation):
    """Over the batch: less the mean, over the sample standard deviation plus `eps`. Counted once a
    step if `steps`, else once a unit."""

    eps: float = 1e-4
    steps: bool = False

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        batch = group(t, BATCH, t.mask if self.steps else units)
        return (advantage - batch.mean(advantage)) / (batch.std(advantage) + self.eps)


@dataclass(frozen=True)
class SignWeights(Modulation):
    """Advantages above 0 times `positive`, below 0 times `negative`."""

    positive: float = 1.0
    negative: float = 1.0

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        return advantage * by_sign(advantage, self.positive, self.negative)
