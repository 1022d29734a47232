"""Importance ratios: how much likelier the current policy makes what happened, in logarithms."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mbrl.policy_gradient.axes.option import Option
from mbrl.policy_gradient.groups import Group, segment, sequence
from mbrl.types import Trajectories


@dataclass(frozen=True)
class Ratio(Option):
    """(current log-probs [B, T] with gradients, trajectories) to log-ratios [B, T]; 0 outside the
    mask. `denominator` names the policy below the line."""

    denominator: str = "old"

    def needs(self) -> tuple[str, ...]:
        return (f"log_probs.{self.denominator}",)

    def steps(self, log_prob: Tensor, t: Trajectories) -> Tensor:
        return log_difference(log_prob, t.log_probs[self.denominator], t.mask)

    @abstractmethod
    def __call__(self, log_prob: Tensor, t: Trajectories) -> Tensor: ...


@dataclass(frozen=True)
class TokenRatio(Ratio):
    """Of every step by itself."""

    text: ClassVar[str] = "pi / pi_{denominator}"

    def __call__(self, log_prob: Tensor, t: Trajectories) -> Tensor:
        return self.steps(log_prob, t)


@dataclass(frozen=True)
class GeometricRatio(Ratio):
    """The geometric mean over the sequence, or over each segment if one is named. "Group Sequence
    Policy Optimization", arXiv 2507.18071, equation 7; with `token` each step's gradient goes
    through its own probability alone (equation 15): the value is the same."""

    segment: str | None = None
    token: bool = False

    def needs(self) -> tuple[str, ...]:
        return (*super().needs(), *((f"segments.{self.segment}",) if self.segment else ()))

    def __call__(self, log_prob: Tensor, t: Trajectories) -> Tensor:
        mean = part(t, self.segment).mean(self.steps(log_prob, t))
        if self.token:
            mean = mean.detach() + log_difference(log_prob, log_prob.detach(), t.mask)
        return torch.where(t.mask, mean, torch.zeros_like(mean))

    def formula(self) -> str:
        own = ", gradient through the step's own" if self.token else ""
        over = self.segment or "sequence"
        return f"geometric mean of pi / pi_{self.denominator} over the {over}{own}"


@dataclass(frozen=True)
class ProductRatio(Ratio):
    """The product over the sequence, or over each segment if one is named: the exact weight."""

    segment: str | None = None

    def needs(self) -> tuple[str, ...]:
        return (*super().needs(), *((f"segments.{self.segment}",) if self.segment else ()))

    def __call__(self, log_prob: Tensor, t: Trajectories) -> Tensor:
        total = part(t, self.segment).sum(self.steps(log_prob, t))
        return torch.where(t.mask, total, torch.zeros_like(total))

    def formula(self) -> str:
        return f"product of pi / pi_{self.denominator} over the {self.segment or 'sequence'}"


def part(t: Trajectories, name: str | None) -> Group:
    """Sequences, or the segments of that name."""
    return segment(t, name) if name else sequence(t)


def log_difference(above: Tensor, below: Tensor, mask: Tensor) -> Tensor:
    """above - below where `mask` is True, 0 elsewhere, whatever stands there (padding may hold
    infinities, whose gradient would be NaN)."""
    zero = torch.zeros_like(above)
    return torch.where(mask, above, zero) - torch.where(mask, below, zero)


@dataclass(frozen=True)
class PrefixMinimumRatio(Ratio):
    """Of every step its own ratio times the smallest one before it in the sequence, without a
    gradient through the latter; an empty minimum is 1. Stands for the product of all ratios up to
    the step, which is the exact weight and has a variance that grows with the length."""

    text: ClassVar[str] = "pi / pi_{denominator} times the smallest such ratio before it, sg"

    def __call__(self, log_prob: Tensor, t: Trajectories) -> Tensor:
        own = self.steps(log_prob, t)
        seen = torch.where(t.mask, own.detach(), torch.full_like(own, torch.inf))
        before = torch.cat([torch.full_like(seen[:, :1], torch.inf), seen[:, :-1]], 1)
        least = before.cummin(1).values
        least = torch.where(least.isinf(), torch.zeros_like(least), least)
        return torch.where(t.mask, own + least, torch.zeros_like(own))
