"""Modulation: what happens to advantages after they were normalised."""

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from mbrl.policy_gradient.groups import BATCH, by_sign, exp, first_steps, group, nodes
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


@dataclass(frozen=True)
class EntropyGrowth(Modulation):
    """Times 1 + `weight` of (H - mean H) / deviation of H over the batch, H the old policy's
    entropy."""

    weight: float = 0.1

    def needs(self) -> tuple[str, ...]:
        return ("entropy",)

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        assert t.entropy is not None
        batch = group(t, BATCH, t.mask)
        level = (t.entropy - batch.mean(t.entropy)) / batch.std(t.entropy).clamp_min(1e-8)
        return advantage * (1 + self.weight * level)


@dataclass(frozen=True)
class SharedPrefix(Modulation):
    """Steps that several sequences share (one id in `groups.node`) get the mean advantage of these
    sequences: hard attribution of branches."""

    node: str = "node"

    def needs(self) -> tuple[str, ...]:
        return (f"groups.{self.node}",)

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        each = first_steps(nodes(t, self.node))
        return group(t, (self.node,), each).mean(advantage)


@dataclass(frozen=True)
class Exponential(Modulation):
    """A e^(A / `temperature`): good samples weigh more, bad ones less."""

    temperature: float = 1.0

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        return advantage * exp(advantage / self.temperature)
