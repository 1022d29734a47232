"""Scales: what a difference from the baseline is divided by."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.policy_gradient.groups import BATCH, Group
from mbrl.policy_gradient.groups import group as grouped
from mbrl.policy_gradient.option import Option
from mbrl.types import Trajectories


@dataclass(frozen=True)
class Scale(Option):
    """(values [B, T], values less their baseline [B, T], their group, trajectories) to divisors
    [B, T]."""

    @abstractmethod
    def __call__(self, value: Tensor, centred: Tensor, group: Group, t: Trajectories) -> Tensor: ...


@dataclass(frozen=True)
class One(Scale):
    """No division."""

    def __call__(self, value: Tensor, centred: Tensor, group: Group, t: Trajectories) -> Tensor:
        return torch.ones_like(value)


@dataclass(frozen=True)
class Std(Scale):
    """The sample standard deviation (1 in a group of one if `alone` is "one") plus `eps`."""

    eps: float = 1e-4
    alone: str = "zero"
    correction: int = 1

    def __call__(self, value: Tensor, centred: Tensor, group: Group, t: Trajectories) -> Tensor:
        std = group.std(value, self.correction)
        if self.alone == "one":
            std = torch.where(group.size() > 1, std, torch.ones_like(std))
        return std + self.eps


@dataclass(frozen=True)
class BatchStd(Scale):
    """The sample standard deviation of the centred values over the whole batch, plus `eps`."""

    eps: float = 1e-4

    def __call__(self, value: Tensor, centred: Tensor, group: Group, t: Trajectories) -> Tensor:
        return grouped(t, BATCH, group.units).std(centred) + self.eps


@dataclass(frozen=True)
class MedianDeviation(Scale):
    """The group's median of distances to its median, plus `eps`."""

    eps: float = 1e-3

    def __call__(self, value: Tensor, centred: Tensor, group: Group, t: Trajectories) -> Tensor:
        return group.median((value - group.median(value)).abs()) + self.eps
