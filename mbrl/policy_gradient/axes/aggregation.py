"""Aggregation: from gains (or penalties) of steps to one number. Denominators are those of the
whole mask, whatever was left out of the sum."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mbrl.config import Count, Positive, Probability
from mbrl.policy_gradient.axes.option import Option, shown
from mbrl.policy_gradient.groups import first_steps, segment, sequence
from mbrl.types import Trajectories


@dataclass(frozen=True)
class Aggregation(Option):
    """(values [B, T], advantages [B, T], trajectories) to a scalar."""

    @abstractmethod
    def __call__(self, value: Tensor, advantage: Tensor, t: Trajectories) -> Tensor: ...


@dataclass(frozen=True)
class TokenMean(Aggregation):
    """Mean over all steps: a long sequence weighs more."""

    text: ClassVar[str] = "mean over all steps"

    def __call__(self, value: Tensor, advantage: Tensor, t: Trajectories) -> Tensor:
        return masked(value, t).sum() / t.mask.sum().clamp_min(1)


@dataclass(frozen=True)
class SequenceMean(Aggregation):
    """Mean over sequences of the mean over their steps."""

    text: ClassVar[str] = "mean over sequences of the mean over their steps"

    def __call__(self, value: Tensor, advantage: Tensor, t: Trajectories) -> Tensor:
        return (masked(value, t).sum(1) / t.lengths.clamp_min(1)).sum() / rows(t)


@dataclass(frozen=True)
class SequenceSum(Aggregation):
    """Mean over sequences of the sum over their steps, over `length` if one is given (a constant,
    such as the longest answer that may be: "Understanding R1-Zero-Like Training", arXiv
    2503.20783)."""

    length: Positive | None = None

    def __call__(self, value: Tensor, advantage: Tensor, t: Trajectories) -> Tensor:
        return masked(value, t).sum() / rows(t) / (self.length or 1.0)

    def formula(self) -> str:
        over = "" if self.length is None else f", over {shown(self.length)}"
        return f"mean over sequences of the sum over their steps{over}"


@dataclass(frozen=True)
class SegmentMean(Aggregation):
    """Mean over all segments of the mean over their steps."""

    text: ClassVar[str] = "mean over {segment}s of the mean over their steps"

    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        return (f"segments.{self.segment}",)

    def __call__(self, value: Tensor, advantage: Tensor, t: Trajectories) -> Tensor:
        parts = segment(t, self.segment)
        share = masked(value, t) / parts.size().to(value.dtype)
        return share.sum() / first_steps(parts).sum().clamp_min(1)


@dataclass(frozen=True)
class SegmentSum(Aggregation):
    """Mean over all segments of the sum over their steps."""

    text: ClassVar[str] = "mean over {segment}s of the sum over their steps"

    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        return (f"segments.{self.segment}",)

    def __call__(self, value: Tensor, advantage: Tensor, t: Trajectories) -> Tensor:
        return masked(value, t).sum() / first_steps(segment(t, self.segment)).sum().clamp_min(1)


@dataclass(frozen=True)
class SignBalanced(Aggregation):
    """n+ / n times the mean over steps with A > 0, plus n- / n times that over steps with A < 0,
    where n+ and n- count sequences: "Balanced Aggregation: Understanding and Fixing Aggregation
    Bias in GRPO"."""

    text: ClassVar[str] = (
        "share of sequences with A > 0 times the mean over their steps, plus the same for A < 0"
    )

    def __call__(self, value: Tensor, advantage: Tensor, t: Trajectories) -> Tensor:
        first = first_steps(sequence(t))
        total = value.new_zeros(())
        for side in (advantage > 0, advantage < 0):
            steps, part = (side & t.mask), (side & first).sum() / rows(t)
            mean = torch.where(steps, value, torch.zeros_like(value)).sum()
            total = total + part * mean / steps.sum().clamp_min(1)
        return total


@dataclass(frozen=True)
class Annealed(Aggregation):
    """(1 - mu) times the mean over the policy's own steps plus mu times that over the steps of
    demonstrations (`signals.demonstration` above 1/2), whose weight mu falls by half a cosine from
    `first` to `last` over `rounds` rounds (`signals.round`, from 0) and stays there. DataMind, by
    the authors' code: 0.9 to 0.05 over 350."""

    text: ClassVar[str] = (
        "(1 - mu) mean over own steps + mu mean over steps of demonstrations, mu from {first} to "
        "{last} by half a cosine over {rounds} rounds"
    )

    first: Probability = 0.9
    last: Probability = 0.05
    rounds: Count = 350

    def needs(self) -> tuple[str, ...]:
        return ("signals.demonstration", "signals.round")

    def share(self, t: Trajectories) -> Tensor:
        """mu, of the latest round in the batch."""
        number = torch.where(t.mask, t.signals["round"], torch.zeros_like(t.reward)).max()
        place = (number / self.rounds).clamp(0, 1)
        return self.last + (self.first - self.last) * (1 + torch.cos(torch.pi * place)) / 2

    def __call__(self, value: Tensor, advantage: Tensor, t: Trajectories) -> Tensor:
        shown = t.mask & (t.signals["demonstration"] > 0.5)
        total, mu = value.new_zeros(()), self.share(t)
        for steps, weight in ((t.mask & ~shown, 1 - mu), (shown, mu)):
            part = torch.where(steps, value, torch.zeros_like(value)).sum()
            total = total + weight * part / steps.sum().clamp_min(1)
        return total


def masked(value: Tensor, t: Trajectories) -> Tensor:
    return torch.where(t.mask, value, torch.zeros_like(value))


def rows(t: Trajectories) -> Tensor:
    """Sequences that have a step."""
    return t.mask.any(1).sum().clamp_min(1)
