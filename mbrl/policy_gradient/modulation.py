"""Modulation: what happens to advantages after they were normalised."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mbrl.policy_gradient.credit import Credit
from mbrl.policy_gradient.groups import (
    BATCH,
    by_sign,
    exp,
    first_steps,
    group,
    nodes,
    segment,
    sequence,
)
from mbrl.policy_gradient.option import Option
from mbrl.policy_gradient.rewards import outcome
from mbrl.policy_gradient.turn_rewards import potential
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
    verdict: ClassVar[bool] = True

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        return advantage * exp(advantage / self.temperature)


@dataclass(frozen=True)
class Positive(Modulation):
    """max(A, 0)."""

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        return advantage.clamp_min(0)


@dataclass(frozen=True)
class LongReasoning(Modulation):
    """Advantages of a prompt times `weight`, unless its longest right answer is longer than its
    wrong ones are on average, or none is right. "ADORA: Training Reasoning Models with Dynamic
    Advantage Estimation on Reinforcement Learning"."""

    weight: float = 0.1
    key: tuple[str, ...] = ("prompt",)
    verdict: ClassVar[bool] = True

    def needs(self) -> tuple[str, ...]:
        return tuple(f"groups.{name}" for name in self.key)

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        rows = group(t, self.key, first_steps(sequence(t)))
        right = outcome(t) > 0
        length = sequence(t).size().to(advantage.dtype)
        longest = rows.max(torch.where(right, length, torch.zeros_like(length)))
        wrong = (~right).to(length.dtype)
        usual = rows.sum(length * wrong) / rows.sum(wrong).clamp_min(1)
        kept = (longest > usual) | (rows.sum(right.to(length.dtype)) == 0)
        return torch.where(kept, advantage, self.weight * advantage)


@dataclass(frozen=True)
class Saturation(Modulation):
    """Advantages times `kept` in turns after the first whose `potential` was above `threshold`:
    what is done after the answer is known earns less. "Step Potential Advantage Estimation", arXiv
    2601.03823."""

    threshold: float = 0.9
    kept: float = 0.5
    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        return ("signals.accuracy", "signals.confidence", f"segments.{self.segment}")

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        starts = first_steps(segment(t, self.segment))
        height = potential(t.signals["accuracy"], t.signals["confidence"])
        known = (starts & (height > self.threshold)).to(torch.int64)
        # Of the step's own turn nothing counts yet, so its start is taken out again.
        own = segment(t, self.segment).sum(known.to(advantage.dtype)) > 0
        after = known.cumsum(1) - own.to(torch.int64) > 0
        return torch.where(after, self.kept * advantage, advantage)


@dataclass(frozen=True)
class Elsewhere(Modulation):
    """Another estimate where `signals.<name>` is 1/2 or less: `credit` of the reward as it is."""

    credit: Credit
    name: str = "vine_window"

    def needs(self) -> tuple[str, ...]:
        return (*self.credit.needs(), f"signals.{self.name}")

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        return torch.where(t.signals[self.name] > 0.5, advantage, self.credit(t.reward, t))
